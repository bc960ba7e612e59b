package cache

import "sync"

// gate separates the updates of one scope from the readers of its topics. A reader never
// blocks in it: if an update is being stored, the reader is woken when that is done. So an update
// of any length delays only the readers of its own scope, and blocks none of the few
// goroutines that serve the clients of all scopes.
type gate struct {
	// storing is held by an update from its beginning to its end. It serializes the updates of
	// a scope.
	storing sync.Mutex
	// topics is held for writing while an update changes topics, and for reading by
	// readers.
	topics sync.RWMutex

	mu sync.Mutex
	// closed is set from before topics is locked for writing until after it is unlocked.
	closed  bool
	waiting []Waker // to be woken then
}

// enter lets a reader in, until leave. If an update is being stored, enter returns false, and w is
// woken once when the update is stored. w may be nil.
func (g *gate) enter(w Waker) bool {
	for !g.topics.TryRLock() {
		if w == nil {
			return false
		}
		g.mu.Lock()
		if g.closed {
			g.waiting = append(g.waiting, w)
			g.mu.Unlock()
			return false
		}
		g.mu.Unlock() // the gate has been opened in the meantime
	}
	return true
}

// leave ends what enter began.
func (g *gate) leave() { g.topics.RUnlock() }

// close keeps new readers out, and waits until the others have left. The caller holds storing.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.topics.Lock()
}

// open lets readers in again, and wakes those that wait.
func (g *gate) open() {
	g.topics.Unlock()
	g.mu.Lock()
	waiting := g.waiting
	g.closed, g.waiting = false, nil
	g.mu.Unlock()
	for _, w := range waiting {
		w.Wake()
	}
}
