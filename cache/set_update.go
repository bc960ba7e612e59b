package cache

import (
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

// How a set takes updates, and what it forgets.

// put takes a member's new state, and says whether clients would notice.
func (s *Set) put(key string, r *Resource) bool {
	m, n := s.members.get(key), s.notes.byKey[key]
	removed := s.first.note(key, r)
	switch {
	case r == nil && !m.present():
		if m.resource == nil {
			// Others may have had it, who come here.
			s.tombs.add(tombstone{key: key, name: key, at: time.Now()})
		}
		s.notes.remove(n)
		return removed || n != nil && n.err != nil
	case m.resource == nil:
		s.tombs.remove(key)
	case m.removed || r == nil || m.resource.hash != r.hash || n != nil && n.err != nil:
		// An error that was told, and is over, makes it new.
	case m.resource.doNotCache || r.doNotCache:
		s.putAgain(m, r)
		return true
	case m.resource.ttl > 0 || r.ttl > 0:
		s.putHeartbeat(m, r)
		return true
	default:
		if m.resource.Name() == r.Name() {
			s.members.set(m, r) // of another version, perhaps
		}
		return false
	}
	s.notes.remove(n)
	s.count(m, -1)
	s.setPrevious(key, m, r)
	s.seq++
	if m.resource == nil {
		m.added = s.seq
	}
	m.seq, m.removed = s.seq, r == nil
	if r != nil {
		m.resource = r
	} else {
		s.addRemoval(key, m)
	}
	s.members.put(key, &m)
	s.count(m, 1)
	s.bodies, s.extended = nil, extended{}
	return true
}

// putError notes why a name's newest state could not be had, and says whether
// clients would notice.
func (s *Set) putError(key string, err *Error) bool {
	s.first.came(key) // it could not be had anew
	if n := s.notes.byKey[key]; n != nil && n.err != nil && *n.err == *err {
		return false
	}
	s.seq++
	n := s.notes.renew(key, s.seq)
	n.failed, n.err = s.seq, err
	return true
}

// beat takes a heartbeat of a member, or what comes to the same, or a TTL where
// there was none or the other way round.
func (s *Set) putHeartbeat(m member, r *Resource) {
	s.seq++
	n := s.notes.renew(s.members.key(m), s.seq)
	if m.resource.ttl != r.ttl {
		s.bodies, s.extended = nil, extended{}
	}
	if m.resource.renewsTTL(r) {
		s.members.set(m, m.resource.withRenewedTTL(r))
		n.heartbeat = s.seq
		return
	}
	s.count(m, -1)
	s.members.set(m, r)
	n.ttlChange = s.seq
	m.resource = r
	s.count(m, 1)
}

// again takes a member that comes unchanged for those from whom it was kept. Others have
// it.
func (s *Set) putAgain(m member, r *Resource) {
	s.seq++
	n := s.notes.renew(s.members.key(m), s.seq)
	n.arrival = s.seq
	switch was := m.resource; {
	case was.ttl > 0 && r.ttl > 0:
		n.heartbeat = s.seq
	case was.ttl > 0 || r.ttl > 0:
		n.ttlChange = s.seq
	}
	s.count(m, -1)
	s.members.set(m, r)
	m.resource = r
	s.count(m, 1)
	s.bodies, s.extended = nil, extended{}
}

// count adds a member to what is counted of those that are present, or takes it
// away.
func (s *Set) count(m member, n int) {
	if !m.present() {
		return
	}
	s.present += n
	s.sum += uint64(n) * digest(m.resource)
	if m.resource.ttl > 0 {
		s.withTTL += n
		s.ttlSum += uint64(n) * digest(m.resource)
	}
	if m.resource.doNotCache {
		s.withheld += n
	}
	if m.resource.redirect != "" {
		s.redirects += n
	}
}

// plan is what a full update ends, and what is to be known for that.
type plan struct {
	gone []string // the keys of members that are not in it
	over []*note  // those of names that are not in it
	// late: the set is in the update twice, so the plan is to be made in between.
	late bool
}

// plan is called before apply, while no other update is stored: only updates change what it
// looks at, so that readers need not be kept out meanwhile.
func (s *Set) plan(u *SetUpdate) (p plan) {
	if s.planned {
		return plan{late: true}
	}
	s.planned = true
	if !u.Full || u.Err != nil || s.members.len() == 0 && len(s.notes.byKey) == 0 {
		return p
	}
	keep := make(map[string]struct{}, len(u.Changes))
	for i := range u.Changes {
		// What could not be had anew is not gone.
		if c := &u.Changes[i]; c.Resource != nil || c.Err != nil && !c.Gone {
			keep[c.Name] = struct{}{}
		}
	}
	for m := range s.members.all() {
		key := s.members.key(m)
		if _, ok := keep[key]; !ok && !m.removed {
			p.gone = append(p.gone, key)
		}
	}
	for key, n := range s.notes.byKey {
		if _, ok := keep[key]; !ok {
			p.over = append(p.over, n)
		}
	}
	return p
}

// apply takes an update, and tells the watchers if clients would notice.
func (s *Set) apply(u *SetUpdate, p *plan, wakers []Waker) []Waker {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.planned = false
	if p.late {
		*p = s.plan(u)
		s.planned = false
	}
	if u.Err != nil {
		return s.fail(u.Err, wakers)
	}
	// Who waits for the whole is told of that.
	first, before := s.status != Present, s.sum
	changed := first || s.partial && !u.Partial || s.first != nil && u.completes()
	stored := 0
	// Whoever comes or goes meanwhile is not to wait for all of a large update.
	pause := func() {
		if stored++; stored%atOnce == 0 {
			s.mu.Unlock()
			s.mu.Lock()
		}
	}
	if u.Full && u.Incomplete {
		s.beginFirst(p.gone)
		p.gone = nil
	}
	for _, key := range p.gone {
		changed = s.put(key, nil) || changed
		pause()
	}
	for _, n := range p.over {
		if s.notes.byKey[n.key] == n { // it did not go with a member
			changed = changed || n.err != nil
			s.notes.remove(n)
		}
	}
	if u.Full {
		s.members.reserve(len(u.Changes))
	}
	for i := range u.Changes {
		c := &u.Changes[i]
		if c.Err == nil || c.Resource != nil || c.Gone {
			changed = s.put(c.Name, c.Resource) || changed
		}
		if c.Err != nil && !c.Gone {
			changed = s.putError(c.Name, c.Err) || changed
		}
		pause()
	}
	if u.completes() {
		for key := range s.endFirst() {
			changed = s.put(key, nil) || changed
			pause()
		}
	}
	s.status, s.err, s.partial = Present, nil, u.Partial
	s.state(u, first, s.sum != before)
	if len(s.removals) > s.sweepAt {
		s.sweep()
	}
	if s.tombs.order.Len() > 0 {
		s.tombs.expire(time.Now())
	}
	if changed {
		wakers = s.notify(wakers, false)
	}
	return wakers
}

// state notes which version of the origin the set is of, once it has taken the update: the
// first of the set, or one that has changed its content, or not.
func (s *Set) state(u *SetUpdate, first, changed bool) {
	failed := slices.ContainsFunc(u.Changes, func(c Change) bool { return c.Err != nil && !c.Gone })
	switch version := u.Origin.String(); {
	case failed && u.Origin != nil:
		s.origin = nil // something in it is older
	case u.Origin != nil:
		s.origin = u.Origin
		// More than one state has had that version: an answer that came in parts, or an
		// origin that does not give every state its own.
		s.inexact = version == s.stated && (s.inexact || changed && !first)
		s.stated = version
	case changed:
		s.origin = nil
	}
}

// fail notes that the set could not be had; what is held stays.
func (s *Set) fail(err *Error, wakers []Waker) []Waker {
	if s.status == Present {
		return wakers
	}
	same := s.err != nil && *s.err == *err
	s.status, s.err = Failed, err
	if same {
		return wakers
	}
	return s.notify(wakers, false)
}

// sweep forgets the removed members that nobody needs to be told of any more:
// a watcher needs it who has taken the member's coming, but not its going. So
// what is remembered for one who does not read is at most the members that it
// knows, however many have come and gone since.
func (s *Set) sweep() {
	positions := make([]uint64, 0, 2*len(s.watchers))
	for _, w := range s.watchers {
		positions = append(positions, w.(SetWatcher).positions()...)
	}
	slices.Sort(positions)
	positions = slices.Compact(positions)
	needed := s.removals[:0]
	for _, g := range s.removals {
		if !s.valid(g) {
			continue
		}
		i, _ := slices.BinarySearch(positions, g.added)
		if i == len(positions) || positions[i] >= g.seq {
			s.forget(g)
		} else {
			needed = append(needed, g)
		}
	}
	clear(s.removals[len(needed):])
	s.removals = needed
	s.sweepAt = max(minSweep, 2*len(s.removals))
}

// digest is a member's part in the hash over a set: the sum over all members is
// the same in whatever order they came, and follows a change at the cost of what
// changed.
func digest(r *Resource) uint64 {
	h := xxhash.NewWithSeed(r.hash)
	_, _ = h.WriteString(r.Name())
	return h.Sum64()
}
