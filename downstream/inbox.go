package downstream

import (
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// inbox is where the cache marks what has changed for one stream. It holds each
// subscription at most once, however often that changes, so it is bounded by
// what the client has subscribed to.
type inbox struct {
	waker cache.Waker

	mu    sync.Mutex
	dirty []session.Subscription
	// awake is set while somebody is looking after the stream: then nobody
	// needs to be woken.
	awake bool
	// again has who is looking after the stream look once more: there is
	// something new that is not in dirty.
	again bool
}

// Mark notes that s has changed, and returns whom to wake for it, if anybody.
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

// wake makes the caller the one who looks after the stream, and says whether
// it is needed for that: if somebody does already, that one looks once more.
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

// hasNews reports whether something has changed that was not drained.
func (i *inbox) hasNews() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.dirty) > 0
}

// drain hands what has changed to the sessions.
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

// release ends the looking after, whatever has changed: the caller has the stream looked at
// again.
func (i *inbox) release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.awake = false
}

// sleep ends the looking after, unless something has changed in the meantime.
func (i *inbox) sleep() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.dirty) > 0 || i.again {
		return false
	}
	i.awake = false
	return true
}
