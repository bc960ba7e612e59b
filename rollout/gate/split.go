package gate

import (
	"fmt"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// splitting divides one update of the source into an update for the accepted topics and one for the new topics. The
// caller holds gate.mu.
type splitting struct {
	*gate
	in                *cache.Update
	toAccepted, toNew cache.Update
	// held: some of the type is not accepted, before or after the update. late: some of the type waits for the next
	// rollout, so the new topics do not have everything that a version covers.
	held, late bool
	// restarts: the update replaces some of the resources that are being rolled out, so another rollout begins.
	restarts bool
}

func (s *splitting) split() {
	s.toAccepted.Changes, s.toAccepted.Sets = nil, nil
	s.toNew.Changes, s.toNew.Sets = nil, nil
	type verdicts struct {
		accepted, newer bool
		instead         *cache.Resource // the resource that the accepted topic, which has no answer yet, gets instead
	}
	of := make([]verdicts, len(s.in.Changes))
	for n := range s.in.Changes {
		c := &s.in.Changes[n]
		k, i := cache.Key{Scope: s.scope, TypeURL: s.in.TypeURL, Name: c.Name}, item{typeURL: s.in.TypeURL, name: c.Name}
		entry, _ := s.cache.Find(k)
		has, known := acceptedOf(entry)
		if entry != nil && !known && c.HasState() && s.recall(k) {
			has, known = acceptedOf(entry)
		}
		if entry != nil && !known {
			has, known = s.elsewhere(i)
			of[n].instead = has
		}
		of[n].accepted, of[n].newer = s.take(i, has, known, c)
	}
	var one [1]setSplit
	sets := one[:0]
	for i := range s.in.Sets {
		sets = append(sets, s.splitSet(&s.in.Sets[i]))
	}
	s.late = s.later.types[s.in.TypeURL] > 0 && !s.restarts
	s.held = s.late || s.pending.types[s.in.TypeURL] > 0 || s.later.types[s.in.TypeURL] > 0
	newest := s.note(s.in.Origin)
	if newest != nil {
		s.newest[s.in.TypeURL] = newest
	}
	if !s.held && newest != nil {
		s.gate.accepted[s.in.TypeURL] = newest.latest
	}
	s.toAccepted.Origin, s.toNew.Origin = newest.ofAccepted(), newest.ofNew()
	if s.held {
		s.toAccepted.Origin = nil
	}
	if s.late {
		s.toNew.Origin = nil
	}
	for i, v := range of {
		c := s.in.Changes[i]
		m := s.note(c.Origin)
		if v.newer {
			if c.Origin = m.ofNew(); s.late {
				c.Origin = nil
			}
			s.toNew.Changes = append(s.toNew.Changes, c)
		}
		if r := s.renewed(item{typeURL: s.in.TypeURL, name: c.Name}, c, v.accepted); r != nil {
			if entry, _ := s.cache.Find(cache.Key{Scope: s.scope, TypeURL: s.in.TypeURL, Name: c.Name}); entry != nil {
				s.toAccepted.Changes = append(s.toAccepted.Changes, cache.Change{Name: c.Name, Resource: r, Origin: entry.Snapshot().Origin})
			}
		}
		if v.instead != nil && !v.accepted {
			instead := cache.Change{Name: c.Name, Resource: v.instead}
			if s.toAccepted.Changes = append(s.toAccepted.Changes, instead); !v.newer {
				s.toNew.Changes = append(s.toNew.Changes, instead)
			}
		}
		if v.accepted && s.passes(c, m) {
			c.Origin = m.ofAccepted()
			if s.held {
				c.Origin = nil
			}
			s.toAccepted.Changes = append(s.toAccepted.Changes, c)
		}
	}
	for i := range sets {
		s.addSet(&s.in.Sets[i], &sets[i])
	}
}

// note records the source's version, once it is known which changes of the type are accepted.
func (s *splitting) note(v *cache.OriginVersion) *mirrors { return note(v, !s.held, !s.late) }

// recall gives an accepted topic that has no answer the state that was accepted before the relay was started. It
// reports whether there was one. If so, a first answer that differs is rolled out.
func (s *splitting) recall(k cache.Key) bool {
	below := *s.accepts.Load()
	var had []cache.Change
	if !below.Accepted(k, func(key string, r *cache.Resource) { had = append(had, cache.Change{Name: key, Resource: r}) }) {
		return false
	}
	u := cache.Update{Scope: s.scope, TypeURL: k.TypeURL, Server: s.in.Server}
	if k.IsSet() {
		u.Sets = []cache.SetUpdate{{Name: k.Name, Extent: cache.Whole, Changes: had}}
	} else {
		u.Changes = had
	}
	below.Accept([]cache.Update{u})
	if len(s.topics) > 0 {
		u.Scope.New = true
		s.cache.Apply(u)
	}
	return true
}

// passes reports whether an accepted change of an entry goes to the accepted topics now. While some of the type is
// not accepted, a change of the entry's version alone waits.
func (s *splitting) passes(c cache.Change, m *mirrors) bool {
	i := item{typeURL: s.in.TypeURL, name: c.Name}
	delete(s.pending.versionOnly, i)
	if !s.held || c.Resource == nil || c.Err != nil || c.Resource.TTL() > 0 || c.Resource.DoNotCache() {
		return true
	}
	entry, _ := s.cache.Find(cache.Key{Scope: s.scope, TypeURL: s.in.TypeURL, Name: c.Name})
	if entry == nil {
		return true
	}
	st := entry.Snapshot()
	if st.Status != cache.Present || st.Err != nil || st.Stale || !same(st.Resource, c.Resource) {
		return true
	}
	c.Origin = m.ofNew()
	s.pending.versionOnly[i] = c
	return false
}

// acceptedOf returns an entry's accepted resource. It is nil if the accepted state is that the resource does not
// exist.
func acceptedOf(e *cache.Entry) (r *cache.Resource, known bool) {
	if e == nil {
		return nil, false
	}
	st := e.Snapshot()
	return st.Resource, st.Status == cache.Present || st.Status == cache.Absent
}

// same reports whether clients see no difference between two resources.
func same(a, b *cache.Resource) bool {
	return a != nil && b != nil && a.Hash() == b.Hash() && a.OwnName() == b.OwnName() && (a.TTL() > 0) == (b.TTL() > 0)
}

// take processes the source's change of an item. has is the item's accepted resource, if known. It returns whether
// the change goes to the accepted topics, and whether it goes to the new ones.
func (s *splitting) take(i item, has *cache.Resource, known bool, c *cache.Change) (accepted, newer bool) {
	switch {
	case c.Resource == nil && c.Err != nil && !c.Gone:
		return true, true // the change leaves the item as it was
	case !known, c.Resource != nil && c.Resource.DoNotCache():
		s.pending.drop(i)
		s.later.drop(i)
		return true, true // a first answer
	}
	before := s.pending.changes[i]
	came := *c
	if came.Receipt = s.in.Receipt; before != nil && same(before.Resource, c.Resource) {
		came.Receipt = before.Receipt // the same change again
	}
	c = &came
	accepts := c.Resource == nil && has == nil || same(has, c.Resource)
	note(c.Origin, false, false)
	later, waited := s.later.changes[i]
	s.later.drop(i)
	if !accepts && !(before != nil && same(before.Resource, c.Resource)) && !(waited && same(later.Resource, c.Resource)) {
		s.in.Receipt.KeepBack("rollout", i.typeURL, i.name)
	}
	if s.machine.Began() && !(accepts && before == nil) && !s.joins(s.sameElsewhere(i, before, c), c.Resource, has) {
		s.later.put(i, *c)
		return false, false
	}
	if accepts {
		s.pending.drop(i)
		return true, true
	}
	p := s.putPending(i, has, c)
	if p.waits != "" && p.refusal == nil && (before == nil || before.waits == "") {
		s.log.Warn("a resource has grown so much that a person has to approve it", "type_url", i.typeURL, "name", i.name,
			"bytes", sizeOf(c.Resource), "accepted_bytes", sizeOf(has), "event", "rollout")
	}
	return false, s.pending.shown(i.typeURL, p)
}

// putPending records the source's change of an item as pending. has is the item's accepted resource. The caller holds
// mu.
func (g *gate) putPending(i item, has *cache.Resource, c *cache.Change) *change {
	p := &change{Change: *c, had: has != nil, waits: g.grown(has, c.Resource)}
	if was := g.pending.changes[i]; was != nil && was.refusal != nil && same(was.Resource, c.Resource) {
		g.pending.update(i, func(was *change) { was.Change = *c })
		return was // the change was refused before
	}
	g.joinRefusal(i, p)
	was := g.pending.changes[i]
	shown := was != nil && g.pending.shown(i.typeURL, was)
	if g.pending.put(i, p); shown && !g.pending.shown(i.typeURL, p) {
		g.pending.released = append(g.pending.released, i) // the new topics have the accepted state again
	}
	return p
}

// grown returns why a person has to approve a resource, "" if no approval is needed.
func (g *gate) grown(has, is *cache.Resource) string {
	if has == nil || is == nil || float64(sizeOf(is)) < g.opts.Load().Grow*float64(sizeOf(has)) {
		return ""
	}
	return fmt.Sprintf("it has grown from %d to %d bytes", sizeOf(has), sizeOf(is))
}

// renewed returns an item's accepted resource with a renewed TTL, nil if there is none: a change that is not accepted
// also shows that the resource is alive.
func (s *splitting) renewed(i item, c cache.Change, accepted bool) *cache.Resource {
	if accepted || c.Resource == nil || c.Resource.TTL() == 0 {
		return nil
	}
	k := i.topic(s.scope)
	entry, set := s.cache.Find(k)
	var has *cache.Resource
	switch {
	case entry != nil:
		has = entry.Snapshot().Resource
	case set != nil:
		has = set.Member(i.name)
	}
	if has == nil || has.TTL() == 0 {
		return nil
	}
	return has.WithTTL(c.Resource.TTL())
}

func sizeOf(r *cache.Resource) int { return r.ValueSize() }

// setSplit is one set's update, divided into its accepted and new parts.
type setSplit struct {
	asIs            bool // the whole update goes to both sides
	first           bool // the update is a complete first answer
	accepted, newer []cache.Change
}

// betweenParts is the longest time between two parts of a first answer. A delta control plane may send the answer in
// several responses, and marks none as the last.
const betweenParts = time.Second

// splitSet divides the source's update of a set.
func (s *splitting) splitSet(u *cache.SetUpdate) (out setSplit) {
	k := cache.Key{Scope: s.scope, TypeURL: s.in.TypeURL, Name: u.Name}
	_, set := s.cache.Find(k)
	completes := u.Extent.Completes()
	state := s.sets[k]
	known := false
	if set != nil {
		status, _ := set.Status()
		known = status == cache.Present
	}
	if u.Err != nil {
		return setSplit{asIs: true}
	}
	if set != nil && !known && s.recall(k) {
		known = true
	}
	if !known {
		delete(s.sets, k)
		if set != nil && !completes {
			s.sets[k] = &setState{first: true, at: time.Now()}
		}
		if set == nil || !s.someElsewhere(u) {
			return setSplit{asIs: true} // a first answer
		}
		out.first = true
		for i := range u.Changes {
			s.takeMember(&out, u.Name, nil, true, &u.Changes[i])
		}
		return out
	}
	first := state != nil && state.first
	if first {
		first = time.Since(state.at) < betweenParts && !removes(u, set)
		state.first, state.at = first, time.Now()
	}
	if u.Extent.Full() {
		state = &setState{first: first, at: time.Now()}
	}
	asIs := true
	for i := range u.Changes {
		c := &u.Changes[i]
		// While the first answer continues, members that are new belong to it.
		accepted, newer := s.takeMember(&out, u.Name, set.Member(c.Name), first, c)
		asIs = asIs && accepted && newer
		if !accepted && c.Resource != nil && set.Awaits(c.Name) {
			// What is missing in an incomplete first answer may still come, but this is not accepted: clients that go
			// back lose it.
			out.accepted = append(out.accepted, cache.Change{Name: c.Name, Gone: true})
		}
		if r := s.renewed(item{s.in.TypeURL, u.Name, c.Name}, *c, accepted); r != nil {
			out.accepted = append(out.accepted, cache.Change{Name: c.Name, Resource: r})
		}
	}
	switch {
	case completes:
		delete(s.sets, k)
	case u.Extent.Full():
		s.sets[k] = state
		asIs = false
	}
	// Pending changes stay out of the accepted topic: in a full update, their members would be missing, too.
	out.asIs = asIs && s.whole(s.in.TypeURL)
	return out
}

// removes reports whether an update removes members that the accepted set has. A first answer does not.
func removes(u *cache.SetUpdate, set *cache.Set) bool {
	return slices.ContainsFunc(u.Changes, func(c cache.Change) bool {
		return c.Removes() && set.Member(c.Name) != nil
	})
}

// takeMember processes the source's change of a member. has is the member's accepted resource. first: without an
// accepted resource, the change is part of a first answer.
func (s *splitting) takeMember(out *setSplit, set string, has *cache.Resource, first bool, c *cache.Change) (accepted, newer bool) {
	i, known := item{s.in.TypeURL, set, c.Name}, has != nil || !first
	var instead *cache.Resource
	if !known {
		has, known = s.elsewhere(i)
		instead = has
	}
	accepted, newer = s.take(i, has, known, c)
	out.add(*c, accepted, newer)
	if instead != nil && !accepted {
		out.add(cache.Change{Name: c.Name, Resource: instead}, true, !newer)
	}
	return accepted, newer
}

func (out *setSplit) add(c cache.Change, accepted, newer bool) {
	if accepted {
		out.accepted = append(out.accepted, c)
	}
	if newer {
		out.newer = append(out.newer, c)
	}
}

// addSet adds the parts of a set's update to the two updates.
func (s *splitting) addSet(u *cache.SetUpdate, of *setSplit) {
	m := s.note(u.Origin)
	accepted, newer := *u, *u
	accepted.Origin, newer.Origin = m.ofAccepted(), m.ofNew()
	mirrored := func(changes []cache.Change, version func(*mirrors) *cache.OriginVersion) []cache.Change {
		for i := range changes {
			changes[i].Origin = version(s.note(changes[i].Origin))
		}
		return changes
	}
	if of.asIs {
		accepted.Changes, newer.Changes = mirrored(slices.Clone(u.Changes), (*mirrors).ofAccepted), mirrored(slices.Clone(u.Changes), (*mirrors).ofNew)
		s.toAccepted.Sets, s.toNew.Sets = append(s.toAccepted.Sets, accepted), append(s.toNew.Sets, newer)
		return
	}
	if !of.first {
		rest := cache.Some
		if u.Extent.Completes() {
			rest = cache.Ends
		}
		accepted.Extent, newer.Extent = rest, rest
	}
	accepted.Changes, newer.Changes = mirrored(of.accepted, (*mirrors).ofAccepted), mirrored(of.newer, (*mirrors).ofNew)
	if s.held {
		accepted.Origin = nil
	}
	if s.pending.nStays > 0 || s.pending.nWaits > 0 || s.late {
		newer.Origin = nil // the set differs from the control plane's state of that version
	}
	s.toAccepted.Sets, s.toNew.Sets = append(s.toAccepted.Sets, accepted), append(s.toNew.Sets, newer)
}
