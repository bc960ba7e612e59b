package collections

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Processing the queues. An evaluation must see an update completely or not at all, so
// the goroutine holds off updates of the scopes that it reads, and allows them again
// regularly. It never waits for the cache: while an update is being stored in a scope,
// which may take a second, work that reads the scope is parked, and other work continues.

// work processes the queues until they are empty or the budget is used up.
func (r *Resolver) work(now time.Time, reach bool) {
	r.budget = workBudget{round: perRound}
	defer r.holds.EndRead()
	r.scheduleDue(now, reach)
	for r.budget.round > 0 && len(r.queues) > 0 {
		l := r.queues[0]
		r.queues[0] = nil
		r.queues = r.queues[1:]
		r.budget.queue = perQueue
		r.workOn(l, now)
		if len(l.steps)+len(l.lookups) > 0 {
			r.queues = append(r.queues, l)
			continue
		}
		l.active = false
		l.steps, l.lookups = nil, nil
		if r.entryQueues[l.authority] == l {
			r.entryQueues = cache.Without(r.entryQueues, &r.rooms.entryQueues, l.authority)
		}
	}
}

// workOn processes a queue as far as the budget allows.
func (r *Resolver) workOn(l *workQueue, now time.Time) {
	for r.remaining() > 0 {
		switch {
		case len(l.steps) > 0:
			s := l.steps[0]
			l.steps[0] = nil
			l.steps = l.steps[1:]
			if r.readable(s) {
				r.runStep(s, now)
			} else {
				r.parked.steps = append(r.parked.steps, s)
			}
		case len(l.lookups) > 0:
			f := l.lookups[0]
			l.lookups[0] = nil
			l.lookups = l.lookups[1:]
			_, dirty := r.dirtyLookups[f]
			if dirty && !f.readable() {
				r.parked.lookups = append(r.parked.lookups, f)
				break
			}
			f.inQueue = false
			if dirty {
				r.markClean(f)
				f.evaluate(now)
			}
		default:
			return
		}
		r.spend()
	}
}

func (r *Resolver) runStep(s step, now time.Time) {
	due := r.sets.steps[s]
	delete(r.sets.steps, s)
	if !due {
		return
	}
	s.context().stepDone()
	s.step(now)
	if _, standing := r.sets.active[s]; !standing {
		return
	}
	if at := s.due(); at.IsZero() {
		r.sets.timers.End(s)
	} else {
		r.sets.timers.Set(s, at)
	}
}

// unpark returns all parked work to its queues.
func (r *Resolver) unpark() {
	was := r.parked
	r.parked = parked{}
	for _, s := range was.steps {
		l := &s.context().queue
		l.steps = append(l.steps, s)
		r.activate(l)
	}
	for _, f := range was.lookups {
		if _, dirty := r.dirtyLookups[f]; !dirty {
			f.inQueue = false // the lookup was closed
			continue
		}
		l := r.queueOf(f)
		l.lookups = append(l.lookups, f)
		r.activate(l)
	}
}

// holdFor holds off updates of the scope of a topic. It returns false while one is being
// stored.
func (r *Resolver) holdFor(of cache.Watching) bool {
	return r.holds.TryBeginRead(of, (*updateStored)(r))
}

// readable reports whether the topics that a step reads can be read now.
func (r *Resolver) readable(s step) bool {
	g, ok := s.(*globSource)
	return !ok || g.set == nil || r.holdFor(g)
}

// readable reports whether the topics that the last evaluation used can be read now. An
// evaluation reads other topics without a check: if an update is being stored there, the
// update's changes cause another evaluation.
func (f *lookup) readable() bool {
	if start := f.start.leaf; start != nil {
		if l := f.resolver.leaves[*start]; l != nil && !f.resolver.holdFor(l) {
			return false
		}
	}
	for _, l := range f.leaves {
		if !f.resolver.holdFor(l) {
			return false
		}
	}
	return true
}

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
