package collections

import (
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// sets is the Resolver's state for derived sets. The Resolver's goroutine owns it.
type sets struct {
	views map[string]View
	// maxEntries is maxEntriesOfSet, except in tests.
	maxEntries int
	// steps are those in a queue, with whether they still have to run.
	steps map[step]bool
	// active are all steps that may become due or depend on reachability; timers are
	// their times.
	active    map[step]struct{}
	timers    cache.Expiries[step]
	clashKeys map[clashKey]struct{} // of this round

	logs setLogs // of all sets that are no views

	clashes, failures atomic.Uint64
}

func newSets(views map[string]View) *sets {
	return &sets{views: views, maxEntries: maxEntriesOfSet, steps: map[step]bool{}, active: map[step]struct{}{}, clashKeys: map[clashKey]struct{}{}}
}

// Clashes returns the number of members hidden since the start by a member of the same name
// in an earlier collection of a view.
func (r *Resolver) Clashes() uint64 { return r.sets.clashes.Load() }

// Failures returns how often since the start a collection of a set was unavailable, or an
// entry of one could not be used.
func (r *Resolver) Failures() uint64 { return r.sets.failures.Load() }

// scheduleDue schedules the steps that are due or depend on a changed reachability.
func (r *Resolver) scheduleDue(now time.Time, reach bool) {
	if reach {
		for st := range r.sets.active {
			r.schedule(st)
		}
	}
	for _, st := range r.sets.timers.Due(now) {
		r.schedule(st)
	}
}

// next returns the time until a step is due, or next if that is earlier.
func (s *sets) next(now time.Time, next time.Duration, timed bool) (time.Duration, bool) {
	if at, ok := s.timers.Next(); ok && (!timed || at.Sub(now) < next) {
		return at.Sub(now), true
	}
	return next, timed
}
