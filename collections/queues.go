package collections

import "github.com/xds-relay/xds-relay/cache"

// Scheduling. Control planes decide how much work there is: how many entries a list has,
// and how many names depend on one resource. One goroutine does all of the work. The work waits
// in queues, one for each set and one for the entries of each authority, and the queues
// take turns. So no queue blocks another for long, and the relay can shut down at any
// time. This file puts work into the queues; work.go takes it out.

// activate gives a queue a turn.
func (r *Resolver) activate(l *workQueue) {
	if !l.active {
		l.active = true
		r.queues = append(r.queues, l)
	}
}

// queueOf returns the queue of a lookup.
func (r *Resolver) queueOf(f *lookup) *workQueue {
	if f.set != nil {
		return &f.set.queue
	}
	authority := f.start.url.Key().Authority
	if f.start.leaf != nil {
		authority = f.start.leaf.Scope.Authority
	}
	l := r.entryQueues[authority]
	if l == nil {
		l = &workQueue{authority: authority}
		r.entryQueues[authority] = l
	}
	return l
}

// markDirty schedules an evaluation of a lookup.
func (r *Resolver) markDirty(f *lookup) {
	if _, there := r.dirtyLookups[f]; there {
		return
	}
	r.dirtyLookups[f] = struct{}{}
	if f.set != nil {
		f.set.outstanding++
		f.set.noteBusy()
	}
	if !f.inQueue {
		f.inQueue = true
		l := r.queueOf(f)
		l.lookups = append(l.lookups, f)
		r.activate(l)
	}
}

// markClean records that the evaluation of a lookup is done, or no longer needed.
func (r *Resolver) markClean(f *lookup) {
	if _, there := r.dirtyLookups[f]; !there {
		return
	}
	r.dirtyLookups = cache.Without(r.dirtyLookups, &r.rooms.dirtyLookups, f)
	if f.set != nil {
		f.set.stepDone()
	}
}

// schedule schedules a step. Until the step has run, its set withholds all removals, because
// another source may have the member.
func (r *Resolver) schedule(s step) {
	due, waits := r.sets.steps[s]
	if due {
		return
	}
	r.sets.steps[s] = true
	of := s.context()
	of.outstanding++
	of.noteBusy()
	if !waits {
		of.queue.steps = append(of.queue.steps, s)
		r.activate(&of.queue)
	}
}

// unschedule cancels a step.
func (r *Resolver) unschedule(s step) {
	if r.sets.steps[s] {
		r.sets.steps[s] = false // it stays in its queue, without effect
		s.context().stepDone()
	}
}

// startStep schedules a step now, and again whenever it is due or reachability changes, until endStep.
func (r *Resolver) startStep(s step) {
	r.sets.active[s] = struct{}{}
	r.schedule(s)
}

func (r *Resolver) endStep(s step) {
	delete(r.sets.active, s)
	r.sets.timers.End(s)
	r.unschedule(s)
}

// remaining returns how many items the current queue may still process.
func (r *Resolver) remaining() int { return min(r.budget.queue, r.budget.round) }

// spend counts one processed item.
func (r *Resolver) spend() {
	r.budget.round, r.budget.queue = max(0, r.budget.round-1), max(0, r.budget.queue-1)
	if r.budget.sinceRelease++; r.budget.sinceRelease < perHold {
		return
	}
	r.holds.EndRead()
	r.budget.sinceRelease = 0
	select {
	case <-r.stop:
		r.budget.round = 0
	default:
	}
}

// withoutHolds runs do. If size, in bytes, is large, updates are allowed during do. do must not
// read topics.
func (r *Resolver) withoutHolds(size int, do func()) {
	if size >= largeList {
		r.holds.EndRead()
		r.budget.sinceRelease = 0
	}
	do()
}

const (
	// perRound is the number of lookups, members and entries to process before the results
	// are written. perQueue is the number of one queue in one turn.
	perRound = 4000
	perQueue = 500
	// perHold is the number to process before updates of the scopes that were read are
	// allowed. Evaluations after that see a later state.
	perHold = 1000
	// largeList is the size in bytes of a list collection that is not parsed while
	// updates are held off.
	largeList = 64 << 10
)

func (s *setContext) context() *setContext { return s }

// noteAnswer records an answer because of which members may be removed. It is not called when a glob
// removes a member: the leaf set was guarded.
func (s *setContext) noteAnswer(a cache.Answer) {
	if a > s.answer {
		s.answer = a
		s.changed[s.derived] = struct{}{} // even if no member is removed: the answer must not apply to later removals
	}
}

// busy reports whether work or answers are outstanding that may change any member.
func (s *setContext) busy() bool { return s.unanswered+s.outstanding > 0 }

// stepDone records that a step or lookup is no longer outstanding.
func (s *setContext) stepDone() {
	s.outstanding--
	s.lessBusy()
}

func (s *setContext) beginQuery() pendingQuery {
	s.unanswered++
	s.noteBusy()
	return pendingQuery{s}
}

// endQuery may be called more than once.
func (q *pendingQuery) endQuery() {
	s := q.set
	if q.set = nil; s == nil {
		return
	}
	s.unanswered--
	s.lessBusy()
}

// lessBusy writes what was withheld once nothing is outstanding.
func (s *setContext) lessBusy() {
	s.noteBusy()
	if !s.busy() && s.hasWithheld {
		s.changed[s.derived] = struct{}{}
	}
}
