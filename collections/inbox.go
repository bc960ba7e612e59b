package collections

import "github.com/xds-relay/xds-relay/cache"

// The inbox: what the cache, watchers and reachability report to the Resolver's goroutine.

// Start implements cache.Source.
func (r *Resolver) Start(k cache.Key) { r.note(note{key: k}) }

// Refresh implements cache.Source.
func (r *Resolver) Refresh(k cache.Key) { r.note(note{key: k, refresh: true}) }

// Stop implements cache.Source.
func (r *Resolver) Stop(k cache.Key) { r.note(note{key: k, stop: true}) }

// ReachabilityChanged repeats the choices between alternatives. It does not block, and
// may be called with any lock held.
func (r *Resolver) ReachabilityChanged() {
	r.inbox.Lock()
	r.inbox.reach = true
	r.inbox.Unlock()
	r.Wake()
}

func (r *Resolver) note(n note) {
	r.inbox.Lock()
	r.inbox.notes = append(r.inbox.notes, n)
	r.inbox.Unlock()
	r.Wake()
}

// Wake implements cache.Waker.
func (r *Resolver) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// enqueue adds a changed topic to the inbox: it is the Changed of all watchers.
func (r *Resolver) enqueue(d changedTopic) cache.Waker {
	r.inbox.Lock()
	defer r.inbox.Unlock()
	if queued := d.inInbox(); !*queued {
		*queued = true
		r.inbox.dirty = append(r.inbox.dirty, d)
	}
	return r
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
