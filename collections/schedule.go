package collections

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Scheduling. Control planes decide how much work there is: how many entries a list has,
// and how many names depend on one resource. One goroutine does all of it. The work waits
// in queues, one for each set and one for the entries of each authority, and the queues
// take turns. So no queue blocks another for long, and the relay can shut down in the
// middle. The goroutine holds off updates of the scopes that it reads, and releases them
// regularly. It never waits for the cache: work that reads a scope to which an update is
// being stored is parked until that is over (park.go).

const (
	// perRound is the number of lookups, members and entries to process before the
	// results are written, and perQueue the part of one queue in it.
	perRound = 4000
	perQueue = 500
	// perHold is the number to process before updates of the scopes that they read are
	// allowed. What is evaluated after that belongs to another moment.
	perHold = 1000
	// largeList is the size in bytes of a list collection that is not parsed while
	// updates are held off.
	largeList = 64 << 10
)

// workQueue is work that waits for its turn.
type workQueue struct {
	steps     []step
	lookups   []*lookup
	active    bool   // it is in Resolver.queues
	authority string // whose entries it has, empty for a set
}

// workBudget is what may still be processed: in this round, and of the queue whose turn
// it is.
type workBudget struct {
	round, queue int
	sinceRelease int // processed since updates were last allowed
}

// work processes the queues until they are empty or the budget is used up.
func (r *Resolver) work(now time.Time, reach bool) {
	r.budget = workBudget{round: perRound}
	defer r.holds.Release()
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
			r.entryQueues = cache.Without(r.entryQueues, &r.rooms.entryLines, l.authority)
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
	}
	if !f.inQueue {
		f.inQueue = true
		l := r.queueOf(f)
		l.lookups = append(l.lookups, f)
		r.activate(l)
	}
}

// markClean records that the evaluation is done, or is not needed any more.
func (r *Resolver) markClean(f *lookup) {
	if _, there := r.dirtyLookups[f]; !there {
		return
	}
	r.dirtyLookups = cache.Without(r.dirtyLookups, &r.rooms.follows, f)
	if f.set != nil {
		f.set.stepDone()
	}
}

// schedule schedules a step. Until it has run, its set withholds all removals: the member
// may turn out to be elsewhere.
func (r *Resolver) schedule(s step) {
	due, waits := r.sets.steps[s]
	if due {
		return
	}
	r.sets.steps[s] = true
	of := s.context()
	of.outstanding++
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

// remaining returns how much the queue may still process.
func (r *Resolver) remaining() int { return min(r.budget.queue, r.budget.round) }

// spend counts one processed item.
func (r *Resolver) spend() {
	r.budget.round, r.budget.queue = max(0, r.budget.round-1), max(0, r.budget.queue-1)
	if r.budget.sinceRelease++; r.budget.sinceRelease < perHold {
		return
	}
	r.holds.Release()
	r.budget.sinceRelease = 0
	select {
	case <-r.stop:
		r.budget.round = 0
	default:
	}
}

// withoutHolds runs do, and allows updates meanwhile if the size in bytes is large. do
// must not read topics.
func (r *Resolver) withoutHolds(size int, do func()) {
	if size >= largeList {
		r.holds.Release()
		r.budget.sinceRelease = 0
	}
	do()
}
