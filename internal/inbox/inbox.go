// Package inbox passes items from any goroutine to one that processes them, without blocking.
package inbox

import "sync"

// Inbox has the items that its goroutine has not processed yet. Its methods are safe for
// concurrent use and do not block: their lock comes last in the order of locks, so they may
// be called with any other lock held.
type Inbox[T any] struct {
	awake chan struct{}
	mu    sync.Mutex
	items []T
}

// New returns an empty inbox.
func New[T any]() *Inbox[T] { return &Inbox[T]{awake: make(chan struct{}, 1)} }

// Add adds an item. The goroutine finds it once it is woken.
func (i *Inbox[T]) Add(item T) {
	i.mu.Lock()
	i.items = append(i.items, item)
	i.mu.Unlock()
}

// Put adds an item and wakes the goroutine.
func (i *Inbox[T]) Put(item T) {
	i.Add(item)
	i.Wake()
}

// Wake makes the goroutine receive from Awake, once for all calls until then.
func (i *Inbox[T]) Wake() {
	select {
	case i.awake <- struct{}{}:
	default:
	}
}

// Awake returns the channel on which the goroutine waits.
func (i *Inbox[T]) Awake() <-chan struct{} { return i.awake }

// Take returns all items, in the order in which they were added, and empties the inbox.
func (i *Inbox[T]) Take() []T {
	i.mu.Lock()
	defer i.mu.Unlock()
	items := i.items
	i.items = nil
	return items
}

// maxRoom is the maximal capacity that TakeAgain reuses.
const maxRoom = 1 << 12

// TakeAgain is like Take, but reuses the memory of the items that the goroutine took before. The goroutine must have
// processed all of them.
func (i *Inbox[T]) TakeAgain(processed []T) []T {
	if clear(processed); cap(processed) > maxRoom {
		processed = nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	items := i.items
	i.items = processed[:0]
	return items
}

// Empty reports whether there are no items.
func (i *Inbox[T]) Empty() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.items) == 0
}
