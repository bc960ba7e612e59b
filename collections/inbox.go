package collections

import (
	"sync/atomic"

	"github.com/xds-relay/xds-relay/cache"
)

// The events that the cache, watchers and reachability report to the Resolver's goroutine.

// event is something that the goroutine has to process.
type event interface{ process(r *Resolver) }

// Start implements cache.Source.
func (r *Resolver) Start(k cache.Key) { r.inbox.Put(note{key: k}) }

// Refresh implements cache.Source.
func (r *Resolver) Refresh(k cache.Key) { r.inbox.Put(note{key: k, refresh: true}) }

// Stop implements cache.Source.
func (r *Resolver) Stop(k cache.Key) { r.inbox.Put(note{key: k, stop: true}) }

// Refused implements cache.Refuser.
func (r *Resolver) Refused(k cache.Key, name string, sent uint32) {
	r.inbox.Put(refused{k, name, sent})
}

// refused is the news that a client has refused a derived resource.
type refused struct {
	key  cache.Key
	name string
	sent uint32 // see cache.Refuser
}

// process implements event.
func (e refused) process(r *Resolver) {
	if of := r.derived[e.key]; of != nil {
		of.refuse(e.name, e.sent)
	}
}

// ReachabilityChanged makes the Resolver repeat its choices between alternatives. It does not
// block, and may be called with any lock held.
func (r *Resolver) ReachabilityChanged() {
	r.reach.Store(true)
	r.inbox.Wake()
}

// inInbox says whether a changed leaf topic is in the inbox.
type inInbox struct{ atomic.Bool }

// enqueue adds a topic to the inbox, unless it is there already. All watchers call it in their
// Changed.
func (r *Resolver) enqueue(topic event, queued *inInbox) cache.Waker {
	if !queued.Swap(true) {
		r.inbox.Add(topic)
	}
	return r.inbox
}

// updateStored is the Resolver as a cache.Waker, for parked work.
type updateStored Resolver

// Wake implements cache.Waker.
func (f *updateStored) Wake() {
	f.freed.Store(true)
	f.inbox.Wake()
}
