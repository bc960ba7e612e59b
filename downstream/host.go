package downstream

import (
	"sync"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// A stream as its sessions see it. The caller of all but mark and expire holds mu.

// Key implements session.Host.
func (st *stream) Key(typeURL, name string) (cache.Key, error) { return st.names.Key(typeURL, name) }

// Admits implements session.Host.
func (st *stream) Admits(k cache.Key) error { return st.scopes.Admits(k) }

// Enter implements session.Host.
func (st *stream) Enter(k cache.Key) error { return st.scopes.Enter(k) }

// Leave implements session.Host.
func (st *stream) Leave(k cache.Key) { st.scopes.Leave(k) }

// Mark implements session.Host.
func (st *stream) Mark(s session.Subscription) cache.Waker { return st.inbox.Mark(s) }

// Expire implements session.Host.
func (st *stream) Expire(r *cache.Resource, s session.Subscription) (stop func()) {
	return st.inbox.Expire(r, s)
}

// PendingLists implements session.Host.
func (st *stream) PendingLists() session.Pool { return &pendingLists }

var pendingLists = sync.Pool{New: session.NewPendingList}
