package cache

import (
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache/internal/members"
)

// Removed members. A set keeps a removed member until all of its watchers have received the removal.
// After that it keeps only the name, within bounds, for clients that were not connected at that time.

// addRemoval records that a member is removed.
func (s *Set) addRemoval(key string, m members.Member) {
	// The key may share the bytes of the resource, which can be replaced if the member comes back.
	s.removals = append(s.removals, removal{key: strings.Clone(key), added: m.Added, seq: m.Seq, time: time.Now()})
}

func (s *Set) valid(g removal) bool {
	m := s.members.Get(g.key)
	return m.Removed && m.Seq == g.seq
}

// sweep forgets the removals that no watcher needs any more. A watcher needs a removal if it has
// received the member, and not yet the removal. So for a watcher that does not read, the set
// remembers at most the members that it knows, however many have come and gone since.
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

// forget replaces a removed member that no watcher needs by a tombstone.
func (s *Set) forget(g removal) {
	m := s.members.Get(g.key)
	name := g.key
	if m.Resource.Name() != name {
		name = strings.Clone(m.Resource.Name())
	}
	s.tombstones.Add(members.Tombstone{Key: g.key, Name: name, Constraints: m.Resource.Constraints(), At: g.time})
	s.members.Remove(m)
}

// RecentlyRemoved calls yield for each member that was removed recently, with its name and
// constraints (Resource.Constraints): a client that reconnects may still have it. The rules for
// yield of Since apply.
func (s *Set) RecentlyRemoved(yield func(name, constraints string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tombstones.Bounds.Limit == 0 {
		return
	}
	now := time.Now()
	s.tombstones.Expire(now)
	for t := range s.tombstones.All() {
		yield(t.Name, t.Constraints)
	}
	for _, g := range s.removals {
		if s.valid(g) && !s.tombstones.Expired(g.time, now) {
			m := s.members.Get(g.key)
			yield(m.Resource.Name(), m.Resource.Constraints())
		}
	}
}
