package downstream

import (
	"errors"
	"sync"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// A stream as its sessions see it. The caller of all but mark and expire holds mu.

// Key implements session.Host.
func (st *stream) Key(typeURL, name string) (cache.Key, error) { return st.names.Key(typeURL, name) }

// Side implements session.Host.
func (st *stream) Side(k cache.Key) cache.Key {
	if st.trials == nil {
		return k
	}
	return st.side(k)
}

// MarksComplete implements session.Host.
func (st *stream) MarksComplete() bool { return st.isPeer() }

// isPeer reports whether the client is another relay of the fleet.
func (st *stream) isPeer() bool { return st.gate != nil && st.gate.peers }

// OnNew implements session.Host.
func (st *stream) OnNew() bool {
	for _, t := range st.trials.each() {
		if t.onNew() {
			return true
		}
	}
	return false
}

// Admits implements session.Host.
func (st *stream) Admits(k cache.Key) error { return st.scopes.Admits(k) }

// Enter implements session.Host.
func (st *stream) Enter(k cache.Key) error { return st.scopes.Enter(k) }

// Leave implements session.Host.
func (st *stream) Leave(k cache.Key) { st.scopes.Leave(k) }

// Move implements session.Host.
func (st *stream) Move(from, to cache.Key) { st.scopes.Move(from, to) }

// ManyBegun implements session.Host.
func (st *stream) ManyBegun() {
	if report := st.server.options.ManyBegun; report != nil {
		report(session.ManyNames)
	}
}

// Mark implements session.Host.
func (st *stream) Mark(s session.Subscription) cache.Waker { return st.inbox.Mark(s) }

// Expire implements session.Host.
func (st *stream) Expire(r *cache.Resource, s session.Subscription) (stop func()) {
	return st.inbox.Expire(r, s)
}

// PendingLists implements session.Host.
func (st *stream) PendingLists() session.Pool { return &pendingLists }

var pendingLists = sync.Pool{New: session.NewPendingList}

// Refused implements session.Host. The caller holds mu.
func (st *stream) Refused(typeURL, name string, err error) {
	st.refusedLately = true
	as := &RefusedError{Client: &cache.Error{Message: err.Error()}}
	if !errors.As(err, &as) {
		_ = errors.As(err, &as.Client)
	}
	// a refusal that ends the stream is recorded when the stream ends
	if as.excess != nil && st.scopes.excess != as.excess {
		st.refuseName(as.excess)
	}
	st.noteRefused(typeURL, name, as)
	st.stand(typeURL, typeStanding{st.troubleOf(typeURL).standing.rejects, true, as.Refusal})
}

// NotRequested implements session.Host. The caller holds mu.
func (st *stream) NotRequested(typeURL, name string, err *cache.Error) {
	st.refuseNotRequested(err)
	st.noteRefused(typeURL, name, &RefusedError{Refusal: RefusedLimit, Client: err})
}

func (st *stream) noteRefused(typeURL, name string, as *RefusedError) {
	st.server.stats.refusals[as.Refusal].Add(1)
	t := st.troubleOf(typeURL)
	t.refused = RefusedNames{
		Total: t.refused.Total + 1,
		Last:  loglines.ClipTo(name, maxRefusedName), Refusal: as.Refusal, Reason: loglines.ClipTo(as.Client.Message, 2*maxRefusedName),
	}
}
