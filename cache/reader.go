package cache

import (
	"maps"
	"sync/atomic"
)

// Reader watches topics of any scopes for somebody who reads what they are at one moment,
// as a client's stream does. It belongs to one goroutine at a time, and must not be copied once it
// watches something. See [Cache] for the snapshot lock.
type Reader struct {
	cache *Cache
	// scopes are those with topics that are watched, and how many. There are few.
	scopes []readScope
	one    [1]readScope // room for scopes
}

type readScope struct {
	topics *scopeTopics
	n      int
}

// NewReader returns one that watches nothing.
func (c *Cache) NewReader() Reader { return Reader{cache: c} }

// Watch is [Cache.Watch].
func (r *Reader) Watch(k Key, w Watcher) (e *Entry, withheld *Resource) {
	e, withheld = r.cache.Watch(k, w)
	r.add(e.table.of, 1)
	return e, withheld
}

// WatchInGroup is [Cache.WatchInGroup].
func (r *Reader) WatchInGroup(k Key, w *Watch) (e *Entry, withheld *Resource) {
	e, withheld = r.cache.WatchInGroup(k, w)
	r.add(e.table.of, 1)
	return e, withheld
}

// WatchSet is [Cache.WatchSet].
func (r *Reader) WatchSet(k Key, w SetWatcher) *Set {
	s := r.cache.WatchSet(k, w)
	r.add(s.table.of, 1)
	return s
}

// Unwatch is [Cache.Unwatch].
func (r *Reader) Unwatch(w Watching) {
	scope := w.watch().topic.table.of
	r.cache.Unwatch(w)
	r.add(scope, -1)
}

// WatchEntry begins another watch of an entry that the reader watches already, at least until
// WatchEntry returns. w has a WatchGroup, and may have what is not for new watchers
// (Resource.DoNotCache).
func (r *Reader) WatchEntry(e *Entry, w *Watch) {
	e.add(w, nil)
	r.add(e.table.of, 1)
}

// Include adds the scope of an entry to what BeginRead locks, until Exclude. Somebody else
// watches the entry for the reader.
func (r *Reader) Include(e *Entry) { r.add(e.table.of, 1) }

// Exclude ends what Include began. The entry is still watched.
func (r *Reader) Exclude(e *Entry) { r.add(e.table.of, -1) }

// Cache returns what is read.
func (r *Reader) Cache() *Cache { return r.cache }

func (r *Reader) add(scope *scopeTopics, n int) {
	for i := range r.scopes {
		of := &r.scopes[i]
		if of.topics != scope {
			continue
		}
		if of.n += n; of.n == 0 {
			last := len(r.scopes) - 1
			*of = r.scopes[last]
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
			for _, of := range r.scopes[:i] {
				of.topics.gate.leave()
			}
			return false
		}
	}
	return true
}

// BeginRead is TryBeginRead, but waits.
func (r *Reader) BeginRead() {
	for !r.TryBeginRead(nil) {
		if w := make(readyChan, 1); !r.TryBeginRead(w) {
			<-w
			continue
		}
		return
	}
}

// EndRead ends the snapshot lock. In between, the caller may watch and unwatch topics only in
// scopes in which it keeps watching others.
func (r *Reader) EndRead() {
	for _, of := range r.scopes {
		of.topics.gate.leave()
	}
}

// wait implements Waker for who waits.
type readyChan chan struct{}

func (w readyChan) Wake() { w <- struct{}{} }

// ReadLocks are snapshot locks on scopes that their owner finds on the way, one by one. The
// zero value has none. They belong to one goroutine.
type ReadLocks struct {
	held map[*scopeTopics]struct{}
	// awaited are scopes that were being stored to.
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

// TryBeginRead adds the scope of a watched topic to the lock: until EndRead, no update of it is
// stored. It does not wait. If an update is being stored, it returns false, and later wakes w,
// once for all calls in the meantime. Scopes that are locked already stay locked.
func (h *ReadLocks) TryBeginRead(of Watching, w Waker) bool {
	scope := of.watch().topic.table.of
	if _, is := h.held[scope]; is {
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
