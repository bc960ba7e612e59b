package cache

import (
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache/internal/members"
)

// Tombstones are the bounds of what each glob collection remembers of members that
// are gone. The zero value remembers none.
type Tombstones struct {
	// TTL is how long a removal is remembered.
	TTL time.Duration
	// Limit is how many are; the oldest are forgotten first.
	Limit int
}

// grave is a member's removal; that of one that came back since has another seq.
type removal struct {
	key        string
	added, seq uint64 // as in member
	at         time.Time
}

// minSweep is how many removals a set remembers without looking whether anybody
// needs them.
const minSweep = 128

// bury remembers a member as removed.
func (s *Set) addRemoval(key string, m members.Member) {
	// The key may be a part of the resource, which may come back as another.
	s.removals = append(s.removals, removal{key: strings.Clone(key), added: m.Added, seq: m.Seq, at: time.Now()})
}

func (s *Set) valid(g removal) bool {
	m := s.members.Get(g.key)
	return m.Removed && m.Seq == g.seq
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

// forget drops what no watcher needs of a member that is gone, which leaves its
// tombstone.
func (s *Set) forget(g removal) {
	m := s.members.Get(g.key)
	name := g.key
	if m.Resource.Name() != name {
		name = strings.Clone(m.Resource.Name())
	}
	s.tombstones.Add(members.Tombstone{Key: g.key, Name: name, Constraints: m.Resource.Constraints(), At: g.at})
	s.members.Remove(m)
}

// RecentlyRemoved calls yield for each member that was removed recently, with its name and
// constraints (Resource.Constraints): a client that was away may still have it. yield is as in
// Since.
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
		if s.valid(g) && !s.tombstones.Expired(g.at, now) {
			m := s.members.Get(g.key)
			yield(m.Resource.Name(), m.Resource.Constraints())
		}
	}
}
