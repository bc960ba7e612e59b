package collections

import (
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// sets is what the Resolver knows of sources. It is part of the Resolver.
type sets struct {
	views map[string]View
	// maxEntries is maxEntriesOfSet, but in tests.
	maxEntries int
	// steps are those that wait in a line: whether they are still to be taken.
	steps map[step]bool
	// standing are all steps that may be due, or depend on reachability, and times when
	// those are due that are.
	standing map[step]struct{}
	times    cache.Expiries[step]
	doubtful map[doubt]struct{} // of this round

	lines setLines // of all that are no views

	clashes, failures atomic.Uint64
}

func newSets(views map[string]View) *sets {
	return &sets{views: views, maxEntries: maxEntriesOfSet, steps: map[step]bool{}, standing: map[step]struct{}{}, doubtful: map[doubt]struct{}{}}
}

// Clashes returns how many members were found since the start that are not seen,
// because an earlier collection of a view has another one of the same name.
func (r *Resolver) Clashes() uint64 { return r.sets.clashes.Load() }

// Failures returns how often since the start a collection could not be had that a set
// is made of, or an entry of one not be used.
func (r *Resolver) Failures() uint64 { return r.sets.failures.Load() }

// look has the steps taken that the time or reachability calls for.
func (r *Resolver) look(now time.Time, reach bool) {
	if reach {
		for st := range r.sets.standing {
			r.todo(st)
		}
	}
	for _, st := range r.sets.times.Due(now) {
		r.todo(st)
	}
}

// next is the earlier of what is due next, and of another.
func (s *sets) next(now time.Time, next time.Duration, timed bool) (time.Duration, bool) {
	if at, ok := s.times.Next(); ok && (!timed || at.Sub(now) < next) {
		return at.Sub(now), true
	}
	return next, timed
}
