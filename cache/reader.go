package cache

import (
	"maps"
	"sync/atomic"
)

// Reader watches topics of any scopes for an owner that reads all of their states at one moment, such
// as a client's stream. It belongs to one goroutine at a time, and must not be copied once it
// watches something. See [Cache] for the snapshot lock.
type Reader struct {
	cache *Cache
	// scopes are the scopes with watched topics, and the number of these topics. There are few.
	scopes []readScope
	one    [1]readScope // room for scopes
}

type readScope struct {
	topics *scopeTopics
	n      int
}

// NewReader returns a Reader that watches nothing.
func (c *Cache) NewReader() Reader { return Reader{cache: c} }

// Watch is [Cache.Watch].
func (r *Reader) Watch(k Key, w Watcher) (e *Entry, withheld *Resource) {
	e, withheld = r.cache.Watch(k, w)
	r.add(e.table.scope, 1)
	return e, withheld
}

// WatchInGroup is [Cache.WatchInGroup].
func (r *Reader) WatchInGroup(k Key, w *Watch) (e *Entry, withheld *Resource) {
	e, withheld = r.cache.WatchInGroup(k, w)
	r.add(e.table.scope, 1)
	return e, withheld
}

// WatchSet is [Cache.WatchSet].
func (r *Reader) WatchSet(k Key, w SetWatcher) *Set {
	s := r.cache.WatchSet(k, w)
	r.add(s.table.scope, 1)
	return s
}

// Unwatch is [Cache.Unwatch].
func (r *Reader) Unwatch(w Watching) {
	scope := w.watch().topic.table.scope
	r.cache.Unwatch(w)
	r.add(scope, -1)
}

// WatchEntry begins another watch of an entry that the reader already watches. The first watch must
// not end before WatchEntry returns. w has a WatchGroup, and may receive a resource that is not for
// new watchers (Resource.DoNotCache).
func (r *Reader) WatchEntry(e *Entry, w *Watch) {
	e.add(w, nil)
	r.add(e.table.scope, 1)
}

// Include adds the scope of an entry to the scopes that BeginRead locks, until Exclude. Another owner
// watches the entry on behalf of the reader.
func (r *Reader) Include(e *Entry) { r.add(e.table.scope, 1) }

// Exclude undoes Include. The entry must still be watched.
func (r *Reader) Exclude(e *Entry) { r.add(e.table.scope, -1) }

// Cache returns the cache that the reader reads.
func (r *Reader) Cache() *Cache { return r.cache }

func (r *Reader) add(scope *scopeTopics, n int) {
	for i := range r.scopes {
		locked := &r.scopes[i]
		if locked.topics != scope {
			continue
		}
		if locked.n += n; locked.n == 0 {
			last := len(r.scopes) - 1
			*locked = r.scopes[last]
			r.scopes[last] = readScope{}
			r.scopes = fitted(r.scopes[:last])
		}
		return
	}
	if r.scopes == nil {
		r.scopes = r.one[:0]
	}
	r.scopes = append(r.scopes, readScope{scope, n})
}

// TryBeginRead takes a snapshot lock on the scopes of all watched topics: until EndRead, no
// update of them is stored. It does not wait. If an update is being stored, it locks nothing,
// returns false, and later wakes w once, unless w is nil.
func (r *Reader) TryBeginRead(w Waker) bool {
	for i := range r.scopes {
		if !r.scopes[i].topics.gate.enter(w) {
			for _, locked := range r.scopes[:i] {
				locked.topics.gate.leave()
			}
			return false
		}
	}
	return true
}

// BeginRead is like TryBeginRead, but waits until no update is being stored.
func (r *Reader) BeginRead() {
	for !r.TryBeginRead(nil) {
		if w := make(readyChan, 1); !r.TryBeginRead(w) {
			<-w
			continue
		}
		return
	}
}

// EndRead ends the snapshot lock. While the lock is held, the caller may watch and unwatch topics
// only in scopes in which it keeps watching others.
func (r *Reader) EndRead() {
	for _, locked := range r.scopes {
		locked.topics.gate.leave()
	}
}

// readyChan is the Waker of BeginRead.
type readyChan chan struct{}

func (w readyChan) Wake() { w <- struct{}{} }

// ReadLocks are snapshot locks on scopes that their owner adds one by one, as it finds them. The
// zero value has none. They belong to one goroutine.
type ReadLocks struct {
	held map[*scopeTopics]struct{}
	// awaited are scopes for which TryBeginRead returned false.
	awaited map[*scopeTopics]*awaited
}

// awaited implements Waker.
type awaited struct {
	w    Waker
	over atomic.Bool
}

func (a *awaited) Wake() {
	a.over.Store(true)
	a.w.Wake()
}

// TryBeginRead locks the scope of a watched topic: until EndRead, no update of the scope is stored. It
// does not wait. If an update is being stored, it returns false, and later wakes w, once for all calls
// until then. Scopes that are locked already stay locked.
func (h *ReadLocks) TryBeginRead(watching Watching, w Waker) bool {
	scope := watching.watch().topic.table.scope
	if _, ok := h.held[scope]; ok {
		return true
	}
	a := h.awaited[scope]
	if a != nil && !a.over.Load() {
		return false
	}
	a = &awaited{w: w}
	if !scope.gate.enter(a) {
		if h.awaited == nil {
			h.awaited = map[*scopeTopics]*awaited{}
		}
		h.awaited[scope] = a
		return false
	}
	delete(h.awaited, scope)
	if h.held == nil {
		h.held = map[*scopeTopics]struct{}{}
	}
	h.held[scope] = struct{}{}
	return true
}

// EndRead ends all of the locks.
func (h *ReadLocks) EndRead() {
	for scope := range h.held {
		scope.gate.leave()
	}
	clear(h.held)
	maps.DeleteFunc(h.awaited, func(_ *scopeTopics, a *awaited) bool { return a.over.Load() })
}
