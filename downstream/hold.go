package downstream

import (
	"time"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// A stream with several types holds the removal of a resource that its client has and requested by name, for
// Options.RemovalHold. A control plane that changes several types at once sends several responses, and may wait before
// each until its client requests what that response will contain. The relay requests more than any one client, so it
// may receive a removal before the response that leads this client away from the resource. The hold lets that response
// go first. Members of sets are not held: for them the relay requests what the client would. What goes together with
// additions of its type is not held either: see Delta.Additions.
// xDS: "Eventual consistency considerations".

// mayRemove returns which removals a response may carry now. The caller holds mu.
func (st *stream) mayRemove() session.RemovalRule {
	if st.types == nil || st.server.options.RemovalHold == 0 {
		return session.RemoveAll // no other type can refer to what is removed
	}
	if since := st.types.held.since; since == 0 || uptime()-since < st.server.options.RemovalHold {
		return session.RemoveUnnamed
	}
	return session.RemoveAll
}

// holdRemovals records whether there are removals to hold, and wakes the stream when they have been held for long
// enough. The caller holds mu.
func (st *stream) holdRemovals(some bool) {
	if st.types == nil {
		return
	}
	held := &st.types.held
	switch {
	case !some:
		held.since = 0
	case held.since == 0:
		held.since = uptime()
		hold := st.server.options.RemovalHold
		if held.timer == nil {
			held.timer = time.AfterFunc(hold, st.resume)
		} else {
			held.timer.Reset(hold)
		}
	}
}

// resume wakes the stream.
func (st *stream) resume() {
	if st.inbox.wake() {
		st.inbox.waker.Wake()
	}
}
