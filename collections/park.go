package collections

import (
	"github.com/xds-relay/xds-relay/cache"
)

// What is to be evaluated sees updates as a whole, so it holds the scopes that it reads.
// While an update is being stored to one of them, which may take a second, it is put aside:
// the evaluations that read other scopes are not to wait for that.

// parked is what waits for an update to be stored. It is due nevertheless.
type parked struct {
	steps   []step
	follows []*follow
}

// unpark has all of it take its turn again.
func (r *Resolver) unpark() {
	was := r.parked
	r.parked = parked{}
	for _, s := range was.steps {
		l := &s.common().line
		l.steps = append(l.steps, s)
		r.wait(l)
	}
	for _, f := range was.follows {
		if _, dirty := r.follows[f]; !dirty {
			f.waits = false // it has ended
			continue
		}
		l := r.lineOf(f)
		l.follows = append(l.follows, f)
		r.wait(l)
	}
}

// freed implements cache.Waker for what is parked.
type freed Resolver

// Wake implements cache.Waker.
func (f *freed) Wake() {
	r := (*Resolver)(f)
	r.inbox.Lock()
	r.inbox.freed = true
	r.inbox.Unlock()
	r.Wake()
}

// holdFor holds the scope of a topic that is about to be read, and says whether that could be done.
func (r *Resolver) holdFor(of cache.Watching) bool { return r.holds.Try(of, (*freed)(r)) }

// readable says whether what a step reads can be read now.
func (r *Resolver) readable(s step) bool {
	g, ok := s.(*globSource)
	return !ok || g.set == nil || r.holdFor(g)
}

// readable says whether what the last evaluation has used can be read now. What is on the
// way for the first time is read as it is: when an update is being stored, what of it comes
// later has the follow evaluated again.
func (f *follow) readable() bool {
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
