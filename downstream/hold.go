package downstream

import (
	"time"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// A stream with several types holds the removal of a resource that its client has and
// requested by name, for Options.RemovalHold. A control plane that changes several types
// at once does so in several responses, and may wait with each until its client asks for
// all that it is going to be sent. The relay asks for more than one client does, so it
// may read a removal before the response that leads this client away from the resource.
// The hold lets that response go first. Members of sets are not held: for them the relay
// asks as the client would.
// xDS: "Eventual consistency considerations".

// mayRemove says which removals a response may carry now. The caller holds mu.
func (st *stream) mayRemove() session.RemovalRule {
	switch {
	case len(st.sessions) < 2 || st.server.options.RemovalHold == 0:
		return session.RemoveAll // no other type may refer to what is removed
	case st.held.since == 0 || uptime()-st.held.since < st.server.options.RemovalHold:
		return session.RemoveUnnamed
	}
	return session.RemoveAll
}

// holdRemovals notes whether there are removals to be held, and has the stream looked
// at again when they have been for long enough. The caller holds mu.
func (st *stream) holdRemovals(some bool) {
	switch {
	case !some:
		st.held.since = 0
	case st.held.since == 0:
		st.held.since = uptime()
		hold := st.server.options.RemovalHold
		if st.held.timer == nil {
			st.held.timer = time.AfterFunc(hold, st.resume)
		} else {
			st.held.timer.Reset(hold)
		}
	}
}

// resume looks at the stream again.
func (st *stream) resume() {
	if st.inbox.wake() {
		st.inbox.waker.Wake()
	}
}
