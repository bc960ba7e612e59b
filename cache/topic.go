package cache

import (
	"sync"
	"time"
)

// Watcher is told that what it watches has changed. A watcher embeds a [Watch]
// and watches one topic.
type Watcher interface {
	// Changed is called while the topic is locked: it must not block and must
	// not call the cache. It returns whom to wake once the whole update has been
	// applied, or nil if nobody needs waking.
	Changed() Waker
	watch() *Watch
}

// Waker is woken after an update has been applied as a whole, so that it sees
// all of it at once.
type Waker interface {
	// Wake must not block.
	Wake()
}

// Watch is a watcher's place at its topic, to be embedded in the watcher. The
// zero value watches nothing.
type Watch struct {
	topic *topic
	index uint32 // in topic.watchers; guarded by topic.mu
	// Own is the watcher's, of which the cache knows nothing: bytes that would be
	// lost to alignment. A client has one Watch for each name.
	Own [4]byte
}

func (w *Watch) watch() *Watch { return w }

// Entry returns the entry that is watched, nil if none is. It is for the watcher's
// owner, who calls Cache.Watch and Cache.Unwatch.
func (w *Watch) Entry() *Entry {
	if w.topic == nil {
		return nil
	}
	return w.topic.entry
}

// topic is what entries and sets have in common: who watches, and since when
// nobody does.
type topic struct {
	key   Key
	entry *Entry // whose topic it is; nil if it is a set's

	mu       sync.Mutex
	watchers []Watcher // in no order
	// idleSince is the time since which nobody has watched; zero while
	// somebody does.
	idleSince time.Time
}

// add begins w's watch. Callers hold Cache.mu, so that the topic cannot end.
func (t *topic) add(w Watcher) (wasIdle bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	place := w.watch()
	place.topic, place.index = t, uint32(len(t.watchers))
	t.watchers = append(t.watchers, w)
	wasIdle = !t.idleSince.IsZero()
	t.idleSince = time.Time{}
	return wasIdle
}

// remove ends w's watch, and says whether it was the last.
func (t *topic) remove(w Watcher, now time.Time) (last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	place := w.watch()
	end := len(t.watchers) - 1
	moved := t.watchers[end]
	t.watchers[place.index] = moved
	moved.watch().index = place.index
	t.watchers[end] = nil
	t.watchers = t.watchers[:end]
	if end == 0 {
		t.watchers = nil
		t.idleSince = now
	}
	place.topic = nil
	return end == 0
}

// tell marks every watcher and appends to wakers those to be woken. The caller
// holds mu.
func (t *topic) tell(wakers []Waker) []Waker {
	for _, w := range t.watchers {
		if waker := w.Changed(); waker != nil {
			wakers = append(wakers, waker)
		}
	}
	return wakers
}
