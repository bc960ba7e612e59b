package downstream

import (
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// inbox is where the cache marks what has changed for one stream. It holds each subscription at most once, however
// often that changes, so the client's subscriptions bound it.
type inbox struct {
	waker cache.Waker

	mu    sync.Mutex
	dirty []session.Subscription
	// awake is set while a goroutine or the queue of the senders is responsible for the stream: then a mark wakes
	// nothing.
	awake bool
	// again makes the responsible goroutine look once more: there is something new that is not in dirty.
	again bool
}

// Mark notes that s has changed, and returns the Waker to call, or nil.
func (i *inbox) Mark(s session.Subscription) cache.Waker {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !s.Enter() {
		return nil
	}
	i.dirty = append(i.dirty, s)
	if i.awake {
		return nil
	}
	i.awake = true
	return i.waker
}

// Expire implements session.Host.
func (i *inbox) Expire(r *cache.Resource, s session.Subscription) (stop func()) {
	t := time.AfterFunc(r.TTL(), func() {
		if w := i.Mark(s); w != nil {
			w.Wake()
		}
	})
	return func() { t.Stop() }
}

// wake makes the caller responsible for the stream, and returns true. If the stream has a responsible goroutine
// already, wake returns false, and that goroutine looks again.
func (i *inbox) wake() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.awake {
		i.again = true
		return false
	}
	i.awake = true
	return true
}

// hasNews reports whether something has changed and was not drained.
func (i *inbox) hasNews() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.dirty) > 0
}

// drain passes the changes to the sessions.
func (i *inbox) drain() {
	i.mu.Lock()
	dirty := i.dirty
	i.dirty, i.again = nil, false
	for _, s := range dirty {
		s.Leave()
	}
	i.mu.Unlock()
	for _, s := range dirty {
		s.MoveToPending()
	}
}

// release ends the responsibility even if something has changed: the caller wakes the stream again.
func (i *inbox) release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.awake = false
}

// sleep ends the responsibility, unless something has changed since. It reports whether it did.
func (i *inbox) sleep() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.dirty) > 0 || i.again {
		return false
	}
	i.awake = false
	return true
}
