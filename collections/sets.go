package collections

import (
	"sync/atomic"
	"time"
)

// sets is what the Resolver knows of sources. It is part of the Resolver.
type sets struct {
	views map[string]View
	steps map[step]struct{} // to be taken in this round
	// standing are all steps that may be due, or depend on reachability.
	standing map[step]struct{}
	doubtful map[doubt]struct{} // of this round

	lines setLines // of all that are no views

	clashes, failures atomic.Uint64
}

func newSets(views map[string]View) *sets {
	return &sets{views: views, steps: map[step]struct{}{}, standing: map[step]struct{}{}, doubtful: map[doubt]struct{}{}}
}

// Clashes returns how many members were found since the start that are not seen,
// because an earlier collection of a view has another one of the same name.
func (r *Resolver) Clashes() uint64 { return r.sets.clashes.Load() }

// Failures returns how often since the start a collection could not be had that a set
// is made of, or an entry of one not be used.
func (r *Resolver) Failures() uint64 { return r.sets.failures.Load() }

// look has the steps taken that the time or reachability calls for.
func (s *sets) look(now time.Time, reach bool) {
	for st := range s.standing {
		if at := st.due(); reach || !at.IsZero() && !at.After(now) {
			s.steps[st] = struct{}{}
		}
	}
}

// takeSteps takes the steps that are to be taken in this round.
func (r *Resolver) takeSteps(now time.Time) {
	for s := range r.sets.steps {
		delete(r.sets.steps, s)
		s.step(now)
	}
}

// next is the earlier of what is due next, and of another.
func (s *sets) next(now time.Time, next time.Duration, timed bool) (time.Duration, bool) {
	for st := range s.standing {
		if at := st.due(); !at.IsZero() && (!timed || at.Sub(now) < next) {
			next, timed = at.Sub(now), true
		}
	}
	return next, timed
}
