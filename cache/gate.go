package cache

import "sync"

// gate keeps the updates of one scope and the readers of its topics apart. A reader never
// waits in it: one that comes while an update is stored is woken after that. So an update
// of any length holds up nothing but the readers of its own scope, and none of the few
// goroutines that serve the clients of all scopes.
type gate struct {
	// storing is held by an update for as long as it takes: updates of a scope come one
	// after another.
	storing sync.Mutex
	// topics is held for writing while an update changes topics, and for reading by
	// readers.
	topics sync.RWMutex

	mu sync.Mutex
	// closed is set from before topics is locked for writing until after it is unlocked.
	closed  bool
	waiting []Waker // to be woken then
}

// enter lets a reader in, until leave. If an update is being stored, it has w, which may be
// nil, woken once after that instead, and returns false.
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
		g.mu.Unlock() // it has been opened meanwhile
	}
	return true
}

// leave ends a reader's stay.
func (g *gate) leave() { g.topics.RUnlock() }

// close keeps readers out, and waits for those that are in. The caller holds storing.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.topics.Lock()
}

// open lets readers in again.
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
