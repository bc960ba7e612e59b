package upstream

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/xdstype"
)

// From what a response says to what the cache is told.

// apply takes a response's verdicts. version is its version_info, or
// system_version_info.
func (s *subscriptions) apply(now time.Time, v *verdicts, sotw bool, version string) cache.Update {
	s.responses++
	s.hidden = v.hidden
	set := s.wildcard != nil && s.wildcard.sent && (v.wildcard == nil || len(v.list) > 0)
	// A response of nothing but heartbeats is not the whole state: servers send
	// those of what has a TTL. xDS: "SotW TTL".
	full := sotw && !v.hidden && !v.onlyBeats() && (set || xdstype.Of(s.typeURL).FullState)
	if full {
		s.fulls++
	}
	v.list = s.resolve(v.list, full)
	if set && !sotw {
		s.dropNameless(v)
	}
	s.version(v, sotw, version)
	u := s.newUpdate()
	u.Changes = make([]cache.Change, 0, len(v.list))
	r := s.newRound(v, &u, set, full)
	listed := len(u.Changes)
	for i := range v.list {
		o := &v.list[i]
		in := r.sets(o)
		in.note(o.key)
		c, ok := s.take(o, in)
		if ok && (set || s.wants(o.key)) {
			u.Changes = append(u.Changes, c)
		}
		r.took(in, o.key, c, ok)
	}
	if r.whole != nil {
		r.whole.changes = u.Changes[listed:len(u.Changes):len(u.Changes)]
	}
	r.tellEarly()
	u.Changes = s.takeAliases(v.list, u.Changes)
	for i := range v.list {
		s.renew(now, &v.list[i])
	}
	if full {
		u.Changes = s.takeMissing(u.Changes, set)
	}
	for _, p := range r.parts {
		s.finish(now, p, v, sotw, &u)
	}
	if !set && s.wildcard != nil && v.wildcard != nil {
		s.fail(s.wildcard, v.wildcard, &u)
	}
	for _, g := range r.failed {
		if r.globs[g.sub.set] == nil { // there is nothing else
			s.fail(g.sub, g.err, &u)
		}
	}
	s.now = nil
	return u
}

// dropNameless has a resource without a name gone that the first answer of a stream
// does not have. In initial_resource_versions it cannot be listed, so that it would
// have come again.
func (s *subscriptions) dropNameless(v *verdicts) {
	const unnamed = ""
	if s.responses != s.before+1 || v.hidden || s.members().Get(unnamed) == nil {
		return
	}
	if !slices.ContainsFunc(v.list, func(o verdict) bool { return o.key == unnamed }) {
		v.list = append(v.list, verdict{key: unnamed, gone: true})
	}
}

// finish tells what a response has made of a set.
func (s *subscriptions) finish(now time.Time, p *part, v *verdicts, sotw bool, u *cache.Update) {
	c := p.set
	settling := !sotw && !c.sub.answered
	s.grace(now, p, sotw)
	c.noteHidden(p, v, sotw, settling)
	switch {
	case p.begins && c.members.Len() == 0 && p.bad:
		// That nothing could be stored does not make the set an empty one.
		c.replace(nil)
		s.endGrace(c)
		s.fail(c.sub, &cache.Error{
			Code:    codes.InvalidArgument,
			Message: "the control plane has sent nothing that can be stored: " + v.nack,
		}, u)
	case settling && s.goesOn(now, p, v):
		// More of it may be to come.
	case settling:
		s.settle(c, p.changes, u)
	default:
		c.first.goesOn(now, v.size, true, s.habits)
		c.sub.answered, c.guessed = true, c.guessed && !p.certain
		origin := s.now
		if v.nack != "" {
			origin = s.notVersion() // the set is not what the control plane calls so
		}
		if p.full || len(p.changes) > 0 && !v.onlyBeats() {
			c.origin = origin
		}
		if p.full || len(p.changes) > 0 || c.sub == s.wildcard {
			s.tellSet(cache.SetUpdate{Name: c.sub.name, Changes: p.changes, Full: p.full, Origin: origin}, u)
		}
	}
}

// goesOn says whether more of a set's first answer may be to come, and has that waited for.
func (s *subscriptions) goesOn(now time.Time, p *part, v *verdicts) bool {
	c, large := p.set, v.size >= largeResponse
	if _, waiting := s.settling.At(c); waiting {
		c.first.goesOn(now, v.size, false, s.habits)
		if large {
			s.settling.Set(c, now.Add(settleTime))
		}
		return large || !p.certain
	}
	wait := s.habits.wait(v.size, v.largest, now.Sub(c.asked))
	if large {
		c.first = firstAnswer{size: v.size, until: now.Add(settleTime)}
	}
	if !p.certain {
		wait = settleTime
	}
	if wait > 0 {
		s.settling.Set(c, now.Add(wait))
	}
	return wait > 0
}

// settle makes what has come of a set the whole of it. news are what came last, of
// which errors are told, and removals of what clients may hold.
func (s *subscriptions) settle(c *set, news []cache.Change, u *cache.Update) {
	s.settling.End(c)
	c.listed = nil
	c.sub.answered = true
	c.origin = s.versionOf()
	all := c.restate()
	held := all.Changes
	for _, change := range news {
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
			held[i].Err = change.Err // it could not be had anew
		} else {
			all.Changes = append(all.Changes, change)
		}
	}
	s.tellSet(all, u)
}

// onlyBeats says that there is nothing but heartbeats.
func (v *verdicts) onlyBeats() bool {
	return len(v.list) > 0 && !slices.ContainsFunc(v.list, func(o verdict) bool { return !o.heartbeat })
}

// renew begins the time to live anew of what has come.
func (s *subscriptions) renew(now time.Time, v *verdict) {
	switch r := s.holds(v.key); {
	case r == nil || r.TTL() == 0:
		s.expiries.End(v.key)
	case v.resource != nil || v.variant != nil:
		s.expiries.Set(v.key, now.Add(r.TTL()))
	}
}

// wants says whether anybody asked for a name itself.
func (s *subscriptions) wants(key string) bool {
	sub := s.names[key]
	return sub != nil && sub.wanted
}

// take takes what was said of one name, and returns what there is to tell of it, if
// there is anything. in are the sets that it is of as well.
func (s *subscriptions) take(v *verdict, in places) (c cache.Change, tell bool) {
	sub := s.names[v.key]
	if sub == nil && !in.any() {
		return c, false // nobody asked
	}
	c = cache.Change{Name: v.key, Err: v.err, Gone: v.gone}
	last := in.held(v.key)
	if sub != nil {
		c.Name = sub.name
		if sub.answer.Resource != nil {
			last = sub.answer.Resource
		}
	}
	switch {
	case v.heartbeat:
		return s.keepAlive(sub, c.Name, v.resource, last, in)
	case v.variant != nil:
		c.Resource = v.variant
	case v.resource != nil:
		c.Resource = s.encode(v.resource)
	case v.err != nil && v.err.Code == codes.PermissionDenied && last != nil:
		// gRFC A88: what one may not have any more is taken away, unlike what
		// cannot be had for a while.
		c.Gone = true
	}
	c.Origin = s.versionIn(&c)
	keep := c.Resource
	if keep == nil && c.Err != nil && !c.Gone {
		keep = last // here as in the cache
	}
	in.put(v.key, keep)
	if in.any() {
		delete(s.inherited, v.key)
	}
	if sub == nil {
		return c, true
	}
	origin, via := sub.answer.Origin, sub.via
	if via != "" && c.Gone {
		s.unalias(sub.name) // whatever lists it
	}
	s.answer(sub, c)
	if keep != nil && c.Resource == nil {
		sub.via = via
	}
	if sub.answer.Resource = keep; keep != nil && c.Origin == nil && c.Err != nil {
		sub.answer.Origin = origin // it stays what it was
	}
	sub.reported = v.err != nil && !v.bad
	return c, true
}

// answer notes what the control plane has said of a name.
func (s *subscriptions) answer(sub *subscription, c cache.Change) {
	sub.seen, sub.answered, sub.reported, sub.expired, sub.anew, sub.via = s.responses, true, false, false, false, ""
	if s.has(&c) && !s.has(&sub.answer) {
		s.having++
	}
	sub.answer = c
}

// keepAlive takes a heartbeat: there is nothing new about the resource but its
// TTL, and it is not missing from the response.
func (s *subscriptions) keepAlive(sub *subscription, key string, r *resource, held *cache.Resource, in places) (cache.Change, bool) {
	if held == nil {
		if sub != nil && sub.wanted && sub.expired {
			s.refresh(sub) // it lives there
		}
		for _, p := range in {
			if p == nil {
				continue
			}
			if _, lapsed := p.set.lapsed[key]; lapsed {
				delete(p.set.lapsed, key)
				s.refresh(p.set.sub)
			}
		}
		return cache.Change{}, false
	}
	held = held.WithTTL(r.ttl)
	in.put(key, held)
	c := cache.Change{Name: key, Resource: held, Origin: s.now}
	if sub != nil {
		sub.seen = s.responses
		c = sub.answer
		c.Resource = held
		if s.now != nil && c.Err == nil {
			c.Origin = s.now
		}
		if s.has(&c) && !s.has(&sub.answer) {
			s.having++
		}
		sub.answer = c
	}
	return c, true
}

// takeMissing tells the names absent that a full response does not have.
// xDS: "Deleting Resources", "Knowing When a Requested Resource Does Not Exist".
func (s *subscriptions) takeMissing(changes []cache.Change, set bool) []cache.Change {
	for _, name := range slices.Sorted(maps.Keys(s.names)) {
		sub := s.names[name]
		absent := sub.answered && sub.answer.Resource == nil && sub.answer.Err == nil
		// A name that was added on this stream, or again, may be missing because the
		// response was sent before the request had come; but the wildcard came first.
		// What was silent for the time of an answer was asked for long before.
		known := set || sub.sent && !sub.left && (sub.first || sub.answer.Resource != nil || sub.isSilent())
		// One that is asked for anew was missing in a request, and may be in this.
		if sub.seen == s.responses || !known || absent || sub.reported || sub.anew {
			continue
		}
		sub.answered, sub.answer, sub.via = true, cache.Change{Name: name, Origin: s.now}, ""
		s.unalias(name)
		s.expiries.End(name)
		if sub.wanted {
			changes = append(changes, sub.answer)
		}
	}
	return changes
}

// encode makes what is stored.
func (s *subscriptions) encode(r *resource) *cache.Resource {
	if r.stored != nil {
		return r.stored // for another set, or another name
	}
	typeURL := s.typeURL // one string for all
	if r.redirect != "" {
		typeURL = xdstype.Locator
	}
	r.stored = cache.NewResource(cache.Spec{
		Name:    r.name,
		Version: r.version,
		TypeURL: typeURL,
		Value:   r.value,
		Extra:   r.extra,

		Redirect: r.redirect,

		TTL:         r.ttl,
		Constraints: r.constraints,
		DoNotCache:  r.doNotCache,
	})
	return r.stored
}
