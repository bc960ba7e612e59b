package collections

import (
	"github.com/xds-relay/xds-relay/cache"
)

// An evaluation must see an update completely or not at all, so it holds off updates of
// the scopes that it reads. While an update is being stored to one of them, which may
// take a second, its work is parked, and work that reads other scopes goes on.

// parked is work that waits until an update is stored. It counts as outstanding.
type parked struct {
	steps   []step
	lookups []*lookup
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

// updateStored is the Resolver as the cache.Waker of parked work.
type updateStored Resolver

// Wake implements cache.Waker.
func (f *updateStored) Wake() {
	r := (*Resolver)(f)
	r.inbox.Lock()
	r.inbox.freed = true
	r.inbox.Unlock()
	r.Wake()
}

// holdFor holds off updates of the scope of a topic. It returns false while one is being
// stored.
func (r *Resolver) holdFor(of cache.Watching) bool { return r.holds.Try(of, (*updateStored)(r)) }

// readable reports whether the topics that a step reads can be read now.
func (r *Resolver) readable(s step) bool {
	g, ok := s.(*globSource)
	return !ok || g.set == nil || r.holdFor(g)
}

// readable reports whether the topics that the last evaluation used can be read now. An
// evaluation reads a new topic without a check: if an update is being stored there, its
// changes cause another evaluation.
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
