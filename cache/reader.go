package cache

import (
	"maps"
	"sync/atomic"
)

// Reader watches topics of any scopes for somebody who reads what they are at one moment,
// as a client's stream does. It belongs to one goroutine at a time. See [Cache] for what a
// hold is good for.
type Reader struct {
	cache *Cache
	// scopes are those with topics that are watched, and how many. There are few.
	scopes []readScope
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
	r.add(e.scope, 1)
	return e, withheld
}

// Join is [Cache.Join].
func (r *Reader) Join(k Key, w *Watch) (e *Entry, withheld *Resource) {
	e, withheld = r.cache.Join(k, w)
	r.add(e.scope, 1)
	return e, withheld
}

// WatchSet is [Cache.WatchSet].
func (r *Reader) WatchSet(k Key, w SetWatcher) *Set {
	s := r.cache.WatchSet(k, w)
	r.add(s.scope, 1)
	return s
}

// Unwatch is [Cache.Unwatch].
func (r *Reader) Unwatch(w Watching) {
	scope := w.watch().topic.scope
	r.cache.Unwatch(w)
	r.add(scope, -1)
}

// WatchToo begins a watch, that of w with an Audience, of an entry that is watched already for
// the reader, by another Watch, until it returns: what is not for newcomers is for it.
func (r *Reader) WatchToo(e *Entry, w *Watch) {
	e.add(w, nil)
	r.add(e.scope, 1)
}

// Include has a hold be of the scope of an entry that somebody else watches for the reader,
// until Exclude.
func (r *Reader) Include(e *Entry) { r.add(e.scope, 1) }

// Exclude ends what Include began. The entry is still watched.
func (r *Reader) Exclude(e *Entry) { r.add(e.scope, -1) }

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
	r.scopes = append(r.scopes, readScope{scope, n})
}

// TryHold keeps updates of all that is watched from being stored, until Release. While one
// is being stored it does not wait: it holds nothing then, and has w, if it is not nil, woken
// once when it is worth trying again.
func (r *Reader) TryHold(w Waker) bool {
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

// Hold is TryHold for who can wait.
func (r *Reader) Hold() {
	for !r.TryHold(nil) {
		if w := make(wait, 1); !r.TryHold(w) {
			<-w
			continue
		}
		return
	}
}

// Release ends a hold. Nothing must have been watched or unwatched since it began, but in
// scopes in which something was and is watched.
func (r *Reader) Release() {
	for _, of := range r.scopes {
		of.topics.gate.leave()
	}
}

// wait implements Waker for who waits.
type wait chan struct{}

func (w wait) Wake() { w <- struct{}{} }

// Holds are for somebody who finds out on the way what there is to be read. The zero value
// holds nothing. It belongs to one goroutine.
type Holds struct {
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

// Try keeps the updates of the scope of what is watched from being stored, until Release.
// While one is being stored it does not wait, and has w woken when it is worth trying again:
// once, however often it is tried meanwhile. What is held stays held.
func (h *Holds) Try(of Watching, w Waker) bool {
	scope := of.watch().topic.scope
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

// Release ends all holds.
func (h *Holds) Release() {
	for scope := range h.held {
		scope.gate.leave()
	}
	clear(h.held)
	maps.DeleteFunc(h.awaited, func(_ *scopeTopics, a *awaited) bool { return a.over.Load() })
}
