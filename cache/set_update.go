package cache

import (
	"cmp"
	"runtime"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache/internal/members"
)

// atOnce is the number of topics or changes that are processed before the lock is released for a moment.
const atOnce = 1024

// plan is what a full update removes, and how an update moves claims.
type plan struct {
	gone []string // the keys of members that are not in the update
	over []*note  // the notes of names that are not in the update
	// claims are the changes of what the members claim.
	claims []claimChange
	// late: the update has the set twice. The second plan is made after the first was applied.
	late bool
}

// plan is called before apply, with gate.storing locked. Only updates change what it reads, so
// readers need not be kept out.
func (s *Set) plan(u *SetUpdate) (p plan) {
	if s.planned {
		return plan{late: true}
	}
	s.planned = true
	p.claims = s.claimChanges(u)
	if !u.Extent.Full() || u.Err != nil || s.members.Len() == 0 && len(s.notes.byKey) == 0 {
		return p
	}
	keep := make(map[string]struct{}, len(u.Changes))
	for i := range u.Changes {
		// A resource with an error is not removed.
		if c := &u.Changes[i]; !c.Removes() {
			keep[c.Name] = struct{}{}
		}
	}
	if !u.Explicit {
		for m := range s.members.All() {
			key := s.members.Key(m)
			if _, ok := keep[key]; !ok && !m.Removed {
				p.gone = append(p.gone, key)
			}
		}
	}
	for key, n := range s.notes.byKey {
		if _, ok := keep[key]; !ok {
			p.over = append(p.over, n)
		}
	}
	return p
}

// apply stores an update, and notifies the watchers if clients would notice.
func (s *Set) apply(u *SetUpdate, p *plan, wakers []Waker) []Waker {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.noteTime()
	s.planned = false
	if p.late {
		*p = s.plan(u)
		s.planned = false
	}
	if u.Err != nil {
		return s.fail(u.Err, wakers)
	}
	// Watchers that wait for a complete set are also notified that it is complete.
	first, before := s.status != Present, s.sum
	changed := first || s.partial && (!u.Partial || !slices.Equal(s.gaps, u.Gaps)) || s.stale && !u.Stale || s.first != nil && u.Extent.Completes() || s.outdated
	if u.Extent != Some {
		changed = changed || len(s.unknown) > 0
		s.unknown = nil
	}
	s.outdated = false
	stored := 0
	// During a large update, watchers can come and go, and clients of other scopes get processor time even if
	// the garbage collector uses the other processors.
	pause := func() {
		if stored++; stored%atOnce == 0 {
			s.mu.Unlock()
			runtime.Gosched()
			s.mu.Lock()
		}
	}
	if u.Extent == Begins {
		s.beginning = first
		s.beginFirst(p.gone)
		p.gone = nil
	}
	for _, key := range p.gone {
		changed = s.put(key, nil) || changed
		pause()
	}
	for _, n := range p.over {
		if s.notes.byKey[n.key] == n { // not removed already, with its member
			changed = changed || n.err != nil
			s.notes.remove(n)
		}
	}
	if u.Extent.Full() {
		s.members.Reserve(len(u.Changes))
	}
	failed := false
	for i := range u.Changes {
		c := &u.Changes[i]
		failed = failed || c.Err != nil && !c.Gone
		if s.refused != nil && s.putRenewed(c.Name, c.Resource, cmp.Or(u.Origin.String(), s.stated)) {
			changed = true
			continue
		}
		if c.HasState() {
			changed = s.put(c.Name, c.Resource) || changed
		}
		if c.Err != nil && !c.Gone {
			changed = s.putError(c.Name, c.Err) || changed
		}
		pause()
	}
	if u.Extent.Completes() {
		for key := range s.endFirst() {
			changed = s.put(key, nil) || changed
			pause()
		}
	}
	s.noteClaims(p.claims)
	s.status, s.err, s.partial, s.gaps, s.stale = Present, nil, u.Partial, u.Gaps, u.Stale
	s.recount()
	s.state(u, first, s.sum != before, failed)
	if len(s.removals) > s.sweepAt {
		s.sweep()
	}
	if s.tombstones.Len() > 0 {
		s.tombstones.Expire(time.Now())
	}
	if changed {
		wakers = s.notify(wakers, false)
	}
	return wakers
}

// state sets the set's origin version after an update. first: it is the set's first update. changed:
// the update has changed the content. failed: a part of the update could not be fetched.
func (s *Set) state(u *SetUpdate, first, changed, failed bool) {
	switch version := u.Origin.String(); {
	case failed && u.Origin != nil:
		s.origin = nil // a part of the set is older
	case u.Origin != nil:
		s.origin = u.Origin
		// inexact: several states have the version, because the answer came in parts or the
		// origin does not give each state a version of its own.
		s.inexact = version == s.stated && (s.inexact || changed && !first)
		s.stated = version
	case changed:
		s.origin = nil
	}
}

// fail records that the set could not be fetched. A set that is Present stays as it is.
func (s *Set) fail(err *Error, wakers []Waker) []Waker {
	if s.status == Present {
		return wakers
	}
	same := s.err != nil && *s.err == *err
	s.status, s.err = Failed, err
	s.recount()
	if same {
		return wakers
	}
	return s.notify(wakers, false)
}

// put stores a member's new state, and reports whether clients would notice the change. r is nil if
// the member is removed.
func (s *Set) put(key string, r *Resource) bool {
	m, n := s.members.Get(key), s.notes.byKey[key]
	removed := s.first.note(key, r)
	delete(s.unknown, key)
	switch {
	case r == nil && !m.Present():
		if m.Resource == nil {
			// Clients may have received it from another server.
			s.tombstones.Add(members.Tombstone{Key: key, Name: key, At: time.Now()})
		}
		s.notes.remove(n)
		return removed || n != nil && n.err != nil
	case m.Resource == nil:
		s.tombstones.Remove(key)
	case m.Removed || r == nil || m.Resource.Hash() != r.Hash() || n != nil && n.err != nil:
		// A member whose error is over counts as changed.
	case m.Resource.DoNotCache() || r.DoNotCache():
		s.putAgain(m, r)
		return true
	case m.Resource.TTL() > 0 || r.TTL() > 0:
		s.putHeartbeat(m, r)
		return true
	default:
		if m.Resource.Name() == r.Name() {
			s.members.SetResource(m, r) // the version may be another
		}
		s.restated = s.table.scope.storedAt
		return false
	}
	s.notes.remove(n)
	s.count(m, -1)
	s.setPrevious(key, m, r)
	s.respell(m, r)
	s.seq++
	if m.Resource == nil {
		m.Added = s.seq
	}
	m.Seq, m.Removed = s.seq, r == nil
	if r != nil {
		m.Resource = r
	} else {
		s.addRemoval(key, m)
	}
	s.members.Put(key, &m)
	s.count(m, 1)
	s.bodies, s.extended = nil, extended{}
	return true
}

// putError records why a name's newest state could not be fetched, and reports whether clients
// would notice the change.
func (s *Set) putError(key string, err *Error) bool {
	s.first.arrived(key) // the answer has the name, with an error
	if n := s.notes.byKey[key]; n != nil && n.err != nil && *n.err == *err {
		return false
	}
	s.seq++
	n := s.notes.renew(key, s.seq)
	n.failed = s.seq
	m := s.members.Get(key)
	s.notes.setError(n, err, m.Present())
	return true
}

// putHeartbeat stores an unchanged member that has, or had, a TTL: a heartbeat, or a member that gets or
// loses a TTL.
func (s *Set) putHeartbeat(m members.Member, r *Resource) {
	s.seq++
	n := s.notes.renew(s.members.Key(m), s.seq)
	if m.Resource.TTL() != r.TTL() {
		s.bodies, s.extended = nil, extended{}
	}
	if s.noteTTL(n, m.Resource, r); n.heartbeat == s.seq {
		s.members.SetResource(m, m.Resource.WithRenewedTTL(r))
		return
	}
	s.count(m, -1)
	s.members.SetResource(m, r)
	m.Resource = r
	s.count(m, 1)
}

// noteTTL records that a member's TTL was renewed, or that the member got or lost a TTL.
func (s *Set) noteTTL(n *note, old, next *Resource) {
	switch {
	case old.RenewsTTL(next):
		n.heartbeat = s.seq
	case old.TTL() > 0 || next.TTL() > 0:
		n.ttlChange = s.seq
	}
}

// putAgain stores an unchanged member that the origin has sent again, for the watchers from which it
// was withheld.
func (s *Set) putAgain(m members.Member, r *Resource) {
	s.seq++
	n := s.notes.renew(s.members.Key(m), s.seq)
	n.arrival = s.seq
	s.noteTTL(n, m.Resource, r)
	s.count(m, -1)
	s.members.SetResource(m, r)
	m.Resource = r
	s.count(m, 1)
	s.bodies, s.extended = nil, extended{}
}

// count adds a member to the counts and sums over present members (n is 1), or subtracts it (-1).
func (s *Set) count(m members.Member, n int) {
	if !m.Present() {
		return
	}
	s.present += n
	s.sum += uint64(n) * digest(m.Resource)
	if m.Resource.TTL() > 0 {
		s.withTTL += n
		s.ttlSum += uint64(n) * digest(m.Resource)
	}
	if m.Resource.DoNotCache() {
		s.withheld += n
	}
	if m.Resource.Redirect() != "" {
		s.redirects += n
	}
}
