package cache

import "google.golang.org/grpc/codes"

// Prefetching: to watch an entry before a client requests it, so that the client need not wait for the
// control plane. Until a client requests it, nobody has seen the entry, and silence of the control plane
// is not yet an answer to a client: some say only by silence that a resource does not exist. So the time
// of an answer begins anew with the first client.

// PrefetchWatch is the [Watch] of a [Prefetcher], which embeds it.
type PrefetchWatch struct{ Watch }

func (*PrefetchWatch) prefetches() {}

// Prefetcher is a [Watcher] that watches an entry for clients that may request it later.
type Prefetcher interface {
	Watcher
	// Adopted is called when the first client watches an entry that was only prefetched, with the
	// topic locked: it must not block and must not call the cache.
	Adopted()
	prefetches()
}

// Adopter is a [Source] that asks for a topic on behalf of a client, as long as no client does so.
type Adopter interface {
	// Adopt is called when the first client requests a topic that was only prefetched, and that has no
	// resource: the time of an answer begins. It is called after Start, must not block and must not call
	// the cache.
	Adopt(Key)
}

// Adopt calls [Adopter.Adopt] of a source that is one.
func Adopt(s Source, k Key) {
	if a, ok := s.(Adopter); ok {
		a.Adopt(k)
	}
}

// Prefetch begins w's watch of the entry under k, and returns the entry. alone says that no client
// watches it.
func (c *Cache) Prefetch(k Key, w Prefetcher) (e *Entry, alone bool) {
	e, _ = c.watchEntry(k, w.watch(), w)
	return e, e.isPrefetched()
}

// isPrefetched reports whether only prefetchers watch the topic.
func (t *topic) isPrefetched() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.prefetched
}

// notePrefetch notes that w is about to watch. It reports whether w is the first client of a topic that
// was only prefetched. The caller holds mu.
func (t *topic) notePrefetch(w Watcher) (adopted bool) {
	if _, is := w.(Prefetcher); is {
		t.prefetched = t.prefetched || len(t.watchers)+len(t.groupWatches) == 0
		return false
	}
	if !t.prefetched {
		return false
	}
	t.prefetched = false
	for _, of := range t.watchers {
		of.(Prefetcher).Adopted()
	}
	return true
}

// adopt has the time of an answer begin anew for the first client of an entry that was only prefetched.
// Other topics than those of sources have their answers from them.
func (c *Cache) adopt(tp *topic) {
	if tp.key.Scope == tp.key.Scope.Accepted() && tp.entry.forgetSilence() {
		Adopt(c.source, tp.key)
	}
}

// forgetSilence forgets that the control plane has not answered, and reports whether the entry has no
// answer.
func (e *Entry) forgetSilence() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.state.Load()
	if st.Status == Failed && (st.Err.Unanswered || st.Err.Code == codes.DeadlineExceeded) {
		if st.Origin != nil {
			st.Origin.left.Add(1)
		}
		e.state.Store(requested)
		e.recount(st, requested)
	}
	return e.state.Load().Status == Requested
}
