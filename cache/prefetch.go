package cache

// Prefetching: watching an entry before a client requests it, so that the client need not wait for the
// control plane. Some control planes report only by silence that a resource does not exist. Silence from
// before a client requests the resource is no answer to that client. So the timeout of an answer starts
// again when the first client watches the entry.

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

// Adopter is a [Source] that is notified when a client requests a topic that was only prefetched, or is absent.
type Adopter interface {
	// Adopt is called when the first client requests a topic that was only prefetched and has no
	// answer: the timeout of the answer starts again. It is also called when another client requests a topic whose
	// resource does not exist: the control plane may need a new request to send the resource when it exists. Adopt is
	// called after Start, must not block and must not call the cache.
	Adopt(Key)
}

// Adopt calls [Adopter.Adopt] if the source is an Adopter.
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

// notePrefetch records that w is about to watch. It reports whether w is the first client of a topic that
// was only prefetched. The caller holds mu.
func (t *topic) notePrefetch(w Watcher) (adopted bool) {
	if _, ok := w.(Prefetcher); ok {
		t.prefetched = t.prefetched || len(t.watchers)+len(t.groupWatches) == 0
		return false
	}
	if !t.prefetched {
		return false
	}
	t.prefetched = false
	for _, w := range t.watchers {
		w.(Prefetcher).Adopted()
	}
	return true
}

// isGone reports whether the control plane has said that there is no resource.
func (e *Entry) isGone() bool { return e.state.Load().Status == Absent }

// review notifies the source that another client watches a topic that is absent.
func (c *Cache) review(tp *topic) {
	if tp.entry != nil && tp.entry.isGone() && tp.key.Scope == tp.key.Scope.Accepted() {
		Adopt(c.source, tp.key)
	}
}

// adopt starts the timeout of an answer again, for the first client of an entry that was only prefetched.
// Only leaf topics have one: the answers of other topics follow from theirs.
func (c *Cache) adopt(tp *topic) {
	if tp.key.Scope == tp.key.Scope.Accepted() && tp.entry.forgetSilence() {
		Adopt(c.source, tp.key)
	}
}

// forgetSilence removes an error that says that the control plane has not answered. It reports whether
// the entry has no answer.
func (e *Entry) forgetSilence() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.state.Load()
	if st.Status == Failed && st.Err.isSilence() {
		if st.Origin != nil {
			st.Origin.left.Add(1)
		}
		e.state.Store(requested)
		e.recount(st, requested)
	}
	return e.state.Load().Status == Requested
}
