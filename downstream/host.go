package downstream

import (
	"sync"

	"github.com/xds-relay/xds-relay/cache"
)

// A stream as its sessions see it. The caller of all but mark and expire holds mu.

// Key implements meanings.
func (st *stream) Key(typeURL, name string) (cache.Key, error) { return st.names.Key(typeURL, name) }

// admits implements admission.
func (st *stream) admits(k cache.Key) error { return st.scopes.admits(k) }

// enter implements admission.
func (st *stream) enter(k cache.Key) error { return st.scopes.enter(k) }

// leave implements admission.
func (st *stream) leave(k cache.Key) { st.scopes.leave(k) }

// mark implements changes.
func (st *stream) mark(s subscription) cache.Waker { return st.inbox.mark(s) }

// expire implements changes.
func (st *stream) expire(r *cache.Resource, s subscription) (stop func()) {
	return st.inbox.expire(r, s)
}

// pendingLists implements host.
func (st *stream) pendingLists() pool { return &pendingLists }

var pendingLists = sync.Pool{New: newPendingList}
