package session

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// How a response changes sets. All of a response is for the wildcard, if
// there is one. The resources in the directory of a glob are for that glob.

// partsOfName are the parts of a response to which one name belongs: the wildcard's and a glob's.
type partsOfName [2]*part

// setsUpdate collects the changes of sets by a response, or by time.
type setsUpdate struct {
	sets  *Sets
	size  int   // the number of resources in the response
	whole *part // the wildcard's, nil if there is none
	parts []*part
	globs map[*set]*part
	// failed are the globs for which the response has an error.
	failed []failedGlob
}

type failedGlob struct {
	set *set
	err *cache.Error
}

// apply applies a response. version is its version_info, or system_version_info.
func (s *Sets) apply(now time.Time, v *accepted, sotw bool, version string) cache.Update {
	s.took(now)
	s.hidden, s.lostEndpoints = v.hidden, nil
	whole := s.wildcard != nil && s.wildcard.sent && (v.wildcard == nil || len(v.list) > 0)
	// A response with only heartbeats is not the whole state: it has only resources
	// with a TTL. xDS: "SotW TTL".
	full := sotw && whole && !v.hidden && !v.onlyBeats()
	v.list = s.resolve(v.list, full, s)
	if whole && !sotw {
		s.dropNameless(v)
	}
	if whole && !sotw {
		s.noteTold(now, v)
	}
	s.takeVersion(v, version, func(*accepted) bool { return true })
	u := s.NewUpdate()
	r := s.newSetsUpdate(v, whole, full)
	work := parts{every: yieldEvery}
	for i := range v.list {
		work.begin(v.list[i].size())
		r.take(&v.list[i])
	}
	for i := range v.list {
		yield(i, yieldEvery)
		s.renewTTL(now, &v.list[i], s.member(v.list[i].key))
	}
	for _, p := range r.parts {
		s.finish(now, p, v, sotw, &u)
	}
	s.completeMarked(v.complete, &u)
	if full {
		s.noteLostEndpoints(r.whole.held)
	}
	if !whole && s.wildcard != nil && v.wildcard != nil {
		s.fail(&s.wildcard.subscription, v.wildcard, &u)
	}
	for _, g := range r.failed {
		if r.globs[g.set] == nil { // there is nothing else
			s.fail(&g.set.subscription, g.err, &u)
		}
	}
	s.now = nil
	return u
}

// dropNameless removes a resource without a name if the first answer of a stream does not
// have it. As such a resource cannot be listed in initial_resource_versions, it would
// have come again.
func (s *Sets) dropNameless(v *accepted) {
	const unnamed = ""
	if s.responses != s.before+1 || v.hidden || s.members().Get(unnamed) == nil {
		return
	}
	if !slices.ContainsFunc(v.list, func(o resourceUpdate) bool { return o.key == unnamed }) {
		v.list = append(v.list, resourceUpdate{key: unnamed, gone: true})
	}
}

// newSetsUpdate begins to apply a response, with what concerns the sets themselves. whole says
// that the response is for the wildcard, and full that it has all members.
func (s *Sets) newSetsUpdate(v *accepted, whole, full bool) *setsUpdate {
	r := &setsUpdate{sets: s, size: len(v.list)}
	if whole {
		c := s.wildcard
		r.whole = &part{
			set: c, held: c.members, begins: c.members == nil, full: full, certain: true, bad: v.nack != "",
			changes: make([]cache.Change, 0, len(v.list)),
		}
		r.parts = append(r.parts, r.whole)
		switch {
		case r.whole.begins && !s.sotw:
			s.begin(c, len(v.list))
		case r.whole.begins, full:
			c.replace(cache.NewResources(len(v.list)))
		}
		if full {
			c.refused = nil
		}
	}
	for i := range v.globs {
		o := &v.globs[i]
		c := s.globs[o.key]
		switch {
		case c == nil || !c.sent:
			// It was not requested.
		case o.gone:
			p := r.of(c)
			s.release(c)
			c.members, c.refused = cache.NewResources(0), nil
			p.full, p.certain = true, p.certain || !s.wasGone(c.name)
		case c.members == nil:
			r.failed = append(r.failed, failedGlob{c, o.err})
		}
	}
	return r
}

// begin begins to hold the members of a set. It begins with those that the control plane need not send
// again. members is the number of members to come, to make room for them.
func (s *Sets) begin(c *set, members int) {
	c.replace(cache.NewResources(max(len(c.listed), members)))
	for key, r := range c.listed {
		c.members.Put(key, r)
	}
	if c.isWildcard() {
		c.listed = nil
		return
	}
	for key, r := range s.inWildcard(c.name).All() {
		c.members.Put(key, r)
	}
	for sub := range s.names.inDirectory(c.name) {
		c.members.Put(sub.name, sub.answer.Resource)
		s.takeOverName(sub)
	}
}

// wasGone reports whether one of the names may have been given up recently, so that a response may
// still be for that.
func (s *Sets) wasGone(names ...string) bool {
	return s.hadNames || slices.ContainsFunc(s.gone, func(gone string) bool { return slices.Contains(names, gone) })
}

// of returns the part of a glob. It makes the part if there is none.
func (r *setsUpdate) of(c *set) *part {
	p := r.globs[c]
	if p == nil {
		p = &part{set: c, begins: c.members == nil, changes: make([]cache.Change, 0, r.likely())}
		if r.globs == nil {
			r.globs = map[*set]*part{}
		}
		r.globs[c] = p
		r.parts = append(r.parts, p)
		if p.begins {
			r.sets.begin(c, r.likely())
		}
		p.held = c.members
	}
	return p
}

// likely estimates how many members a new glob gets: all resources of the response, if they can belong
// to nothing else.
func (r *setsUpdate) likely() int {
	if r.whole == nil && len(r.sets.globs) == 1 && r.sets.names == nil {
		return r.size
	}
	return 0
}

// partsOf returns the parts to which a name belongs.
func (r *setsUpdate) partsOf(v *resourceUpdate) (in partsOfName) {
	in[0] = r.whole
	g := r.sets.globOf(v.key)
	if g == nil || !g.sent {
		return in
	}
	byName := g.listed[v.key] != nil || r.sets.names.requested(v.key)
	// A removal, a heartbeat or an error of a name is no answer to the glob.
	if g.members == nil && (v.gone || v.heartbeat || byName && v.err != nil) {
		delete(g.listed, v.key)
		return in
	}
	p := r.of(g)
	if (!g.answered || g.guessed) && !p.certain && !byName && !v.gone && !v.heartbeat {
		p.certain = !r.sets.wasGone(v.key, g.name)
	}
	p.bad = p.bad || v.bad
	in[1] = p
	return in
}

// take applies the update of one name, and adds the change to the parts to which it belongs.
func (r *setsUpdate) take(v *resourceUpdate) {
	s, in := r.sets, r.partsOf(v)
	if in == (partsOfName{}) {
		return // it was not requested
	}
	for _, p := range in {
		if p != nil && p.set.incomplete && p.set.members.Get(v.key) == nil {
			p.grown = true
		}
	}
	last := in.held(v.key)
	var c cache.Change
	var held *cache.Resource
	switch {
	case !v.heartbeat:
		c, held = s.changeOf(v, last)
		delete(s.inherited, v.key)
	case last != nil:
		held = last.WithTTL(v.resource.TTL)
		c = cache.Change{Name: v.key, Resource: held, Origin: s.now}
	default:
		r.revive(v.key, in)
		return
	}
	for _, p := range in {
		if p != nil {
			p.set.put(v.key, held)
			c.Answer = p.set.takesBack(v.key, held != nil, s.answering)
			p.changes = append(p.changes, c)
			p.set.note(v.key, c)
		}
	}
}

// revive requests sets once more if a member has expired here, but still exists at the control plane.
func (r *setsUpdate) revive(key string, in partsOfName) {
	for _, p := range in {
		if p == nil {
			continue
		}
		if _, expired := p.set.expired[key]; expired {
			delete(p.set.expired, key)
			r.sets.refresh(&p.set.subscription)
		}
		p.set.note(key, cache.Change{})
	}
}

// held returns the member that a set had under a key before the response.
func (in partsOfName) held(key string) *cache.Resource {
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

// finish adds the change of a set by a response to the update.
func (s *Sets) finish(now time.Time, p *part, v *accepted, sotw bool, u *cache.Update) {
	c := p.set
	settling := !sotw && !c.answered
	s.grace(now, p, v, sotw)
	c.noteHidden(p, v, sotw, settling)
	switch {
	case p.begins && c.members.Len() == 0 && p.bad:
		// A set of which nothing could be stored is not an empty set.
		c.replace(nil)
		s.endGrace(c)
		s.fail(&c.subscription, &cache.Error{
			Code:    codes.InvalidArgument,
			Message: "the control plane has sent nothing that can be stored: " + v.nack,
		}, u)
	case settling && !v.completes(c.name) && s.goesOn(now, p, v):
		// More of it may follow.
	case settling:
		s.settle(c, p.changes, u)
	default:
		c.first.goesOn(now, v.size, true, s.habits)
		if !c.answered {
			c.members.Fit()
		}
		c.answered, c.guessed = true, c.guessed && !p.certain
		origin := s.now
		if v.nack != "" {
			origin = s.notVersion() // the set differs from that of the control plane's version
		}
		if p.full || len(p.changes) > 0 && !v.onlyBeats() {
			c.origin = origin
		}
		if p.full || len(p.changes) > 0 || c.isWildcard() {
			answer := s.answerFor(c, p)
			s.send(cache.SetUpdate{Name: c.name, Changes: p.changes, Extent: cache.WholeIf(p.full), Origin: origin, Answer: answer}, u)
		}
	}
}

// answerFor returns to which answer a response belongs, for one set. In SotW, the first full response is
// the first answer. In delta, early responses of the stream belong to the first answer of a set that was
// known before. For other sets, a removal can only be of a member that came on the stream.
func (s *Sets) answerFor(c *set, p *part) cache.Answer {
	switch {
	case s.sotw && p.full && !c.stated:
		c.stated = true
		return cache.FirstAnswer
	case !s.sotw && c.resumed:
		return s.answering
	}
	return cache.LaterAnswer
}

// takesBack returns cache.LaterAnswer if a member is removed that came on the present stream: the removal
// then does not belong to the first answer. It records members that come.
func (c *set) takesBack(key string, is bool, a cache.Answer) cache.Answer {
	switch _, came := c.came[key]; {
	case !c.resumed || a != cache.FirstAnswer:
		c.came = nil
	case !is && came:
		return cache.LaterAnswer
	case is && len(c.came) < maxCame:
		if c.came == nil {
			c.came = map[string]struct{}{}
		}
		c.came[strings.Clone(key)] = struct{}{}
	}
	return cache.NoAnswer
}

// settle makes the members that have come the whole set. last are the changes by the last response: settle
// also sends the errors among them, and the removals of resources that clients may hold.
func (s *Sets) settle(c *set, last []cache.Change, u *cache.Update) {
	s.settling.End(c)
	c.listed = nil
	c.answered = true
	c.members.Fit()
	c.origin = s.versionOf()
	all := c.restate()
	held := all.Changes
	for _, change := range last {
		if change.Resource == nil && change.Gone && c.incomplete {
			all.Changes = append(all.Changes, change)
		}
		if change.Resource != nil || change.Err == nil || change.Gone {
			continue
		}
		i, found := slices.BinarySearchFunc(held, change.Name, func(h cache.Change, name string) int {
			return strings.Compare(h.Name, name)
		})
		if found {
			held[i].Err = change.Err // only the newer resource is unavailable
		} else {
			all.Changes = append(all.Changes, change)
		}
	}
	s.send(all, u)
}

// settleHeld settles a glob that the control plane does not answer with the members that the wildcard
// and the names have, if there are any: if all members were listed, the control plane has nothing to
// send. The set is then guessed, as there may be other members. settleHeld does not use recalled
// resources, which the control plane has not sent.
func (s *Sets) settleHeld(c *set, u *cache.Update) bool {
	if c.isWildcard() || c.members != nil || c.recalled {
		return false
	}
	s.begin(c, 0)
	if c.members.Len() == 0 {
		c.replace(nil)
		return false
	}
	c.guessed = true
	s.settle(c, nil, u)
	return true
}

// expire removes resources that were not renewed in time, and settles sets. xDS: "TTL". A resource
// expires whether or not there is a stream: that is what a TTL is for.
func (s *Sets) expire(now time.Time) cache.Update {
	u := s.NewUpdate()
	r := &setsUpdate{sets: s}
	if m := s.members(); m != nil {
		r.whole = &part{set: s.wildcard, held: m}
		r.parts = append(r.parts, r.whole)
	}
	for _, key := range s.expiries.Due(now) {
		for c := range s.of(key) {
			if c.members.Get(key) != nil {
				if c.expired == nil {
					c.expired = map[string]struct{}{}
				}
				c.expired[key] = struct{}{}
			}
		}
		v := s.expireVariant(key, s)
		r.take(&v)
		s.shown = "" // on a new stream the control plane must send it again
	}
	settled := s.settling.Due(now)
	for _, c := range settled {
		c.first.goesOn(now, 0, true, s.habits)
		s.settle(c, nil, &u)
	}
	for _, p := range r.parts {
		if c := p.set; c.answered && len(p.changes) > 0 && !slices.Contains(settled, c) {
			c.origin = nil // the set differs from that of the control plane's version
			s.send(cache.SetUpdate{Name: c.name, Changes: p.changes}, &u)
		}
	}
	return u
}
