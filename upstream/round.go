package upstream

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// What one response says of each set. A response is of the wildcard as a whole, if
// there is one; of a glob are those of its resources that are in its directory.

// part is what a response says of one set.
type part struct {
	set *set
	// held is what the set gave before, where the response has all of it.
	held    *cache.Resources
	changes []cache.Change
	begins  bool // nothing was known of it
	full    bool // what is not in the response is gone
	bad     bool // there was something that cannot be stored
	// grown says that there was a name which an incomplete set did not have.
	grown bool
	// certain says that something in the response was sent because of the set. What is
	// asked for by name as well may have been sent because of that.
	certain bool
}

// places are the parts in which one name has its place.
type places [2]*part

// round is one response.
type round struct {
	subs  *subscriptions
	u     *cache.Update
	whole *part // the wildcard's, nil if there is none
	parts []*part
	globs map[*set]*part
	// failed are the globs of which an error was said.
	failed []failedGlob
	// forgotten are the sets of which all has been told.
	forgotten map[*set]struct{}
	// early is what names are told that had been listed when a glob begins.
	early []cache.Change
}

type failedGlob struct {
	sub *subscription
	err *cache.Error
}

// newRound begins to take a response, with what it says of sets as such. set says
// that it is of the wildcard, and full that it is all of that.
func (s *subscriptions) newRound(v *verdicts, u *cache.Update, set, full bool) *round {
	r := &round{subs: s, u: u}
	if set {
		c := s.wildcard.set
		r.whole = &part{set: c, held: c.members, begins: c.members == nil, full: full, certain: true, bad: v.nack != ""}
		r.parts = append(r.parts, r.whole)
		switch {
		case r.whole.begins && !s.sotw:
			u.Changes = s.begin(c, u.Changes)
		case r.whole.begins, full:
			c.replace(cache.NewResources(len(v.list)))
		}
		if full {
			c.refused = nil
		}
	}
	for i := range v.globs {
		o := &v.globs[i]
		sub := s.globs[o.key]
		switch {
		case sub == nil || !sub.sent:
			// Nobody asked.
		case o.gone:
			p := r.of(sub.set)
			s.release(sub.set)
			sub.set.members, sub.set.refused = cache.NewResources(0), nil
			p.full, p.certain = true, p.certain || r.first(sub.name)
		case sub.set.members == nil:
			r.failed = append(r.failed, failedGlob{sub, o.err})
		}
	}
	return r
}

// of returns the part of a glob.
func (r *round) of(c *set) *part {
	p := r.globs[c]
	if p == nil {
		p = &part{set: c, begins: c.members == nil}
		if r.globs == nil {
			r.globs = map[*set]*part{}
		}
		r.globs[c] = p
		r.parts = append(r.parts, p)
		if p.begins {
			r.early = r.subs.begin(c, r.early)
		}
		p.held = c.members
	}
	return p
}

// sets returns where a name has its place.
func (r *round) sets(v *verdict) (in places) {
	in[0] = r.whole
	g := r.subs.globOf(v.key)
	if g == nil || !g.sent {
		return in
	}
	sub := r.subs.names[v.key]
	byName := sub != nil && sub.sent || g.set.listed[v.key] != nil
	// That there is nothing under a name, or that it lives, is no answer to the glob.
	if g.set.members == nil && (v.gone || v.heartbeat || byName && v.err != nil) {
		delete(g.set.listed, v.key)
		return in
	}
	in[1] = r.of(g.set)
	if (!g.answered || g.set.guessed) && !in[1].certain && !byName && !v.gone && !v.heartbeat {
		in[1].certain = r.first(v.key, g.name)
	}
	in[1].bad = in[1].bad || v.bad
	return in
}

// tellEarly adds what names are told that had been listed, and of which the response
// says nothing itself.
func (r *round) tellEarly() {
	for _, c := range r.early {
		if r.subs.names[c.Name].seen != r.subs.responses {
			r.u.Changes = append(r.u.Changes, c)
		}
	}
}

// first says that what comes of names is not because of
// what was given up not long ago.
func (r *round) first(names ...string) bool {
	return !slices.ContainsFunc(r.subs.gone, func(gone string) bool { return slices.Contains(names, gone) })
}

// took notes what there is to tell of a name in its places.
func (r *round) took(in places, key string, c cache.Change, tell bool) {
	for _, p := range in {
		if p == nil {
			continue
		}
		if tell && p != r.whole { // whose changes are all of the response's
			p.changes = append(p.changes, c)
		}
		p.set.note(key, c)
	}
}

// note notes whether a name is new to sets that are incomplete, before it is put there.
func (in places) note(key string) {
	for _, p := range in {
		if p != nil && p.set.incomplete && !p.grown {
			p.grown = p.set.members.Get(key) == nil
		}
	}
}

func (in places) any() bool { return in[0] != nil || in[1] != nil }

// held returns what a set gave under a key before the response.
func (in places) held(key string) *cache.Resource {
	for _, p := range in {
		if p == nil {
			continue
		}
		if r := p.held.Get(key); r != nil {
			return r
		}
	}
	return nil
}

func (in places) put(key string, r *cache.Resource) {
	for _, p := range in {
		if p != nil {
			p.set.put(key, r)
		}
	}
}

// tell tells of each set what has come about by time.
func (r *round) tell() {
	for _, p := range r.parts {
		if _, forgotten := r.forgotten[p.set]; !forgotten && p.set.sub.answered && len(p.changes) > 0 {
			p.set.origin = nil // it is not what the control plane calls so
			r.subs.tellSet(cache.SetUpdate{Name: p.set.sub.name, Changes: p.changes}, r.u)
		}
	}
}

// newLapse begins to take what comes about by time.
func (s *subscriptions) newLapse(u *cache.Update) *round {
	r := &round{subs: s, u: u}
	if m := s.members(); m != nil {
		r.whole = &part{set: s.wildcard.set, held: m}
		r.parts = append(r.parts, r.whole)
	}
	return r
}

// lapsed notes what there is to tell of a name in its places.
func (in places) lapsed(c cache.Change) {
	for _, p := range in {
		if p != nil {
			p.changes = append(p.changes, c)
		}
	}
}

// forget leaves out a set of which all has been told.
func (r *round) forget(c *set) {
	if r.forgotten == nil {
		r.forgotten = map[*set]struct{}{}
	}
	r.forgotten[c] = struct{}{}
}
