package downstream

import (
	"time"

	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/uptime"
)

// A stream with several types holds the removal of a resource that its client has and requested by name, for
// Options.RemovalHold. A control plane that changes several types at once sends several responses, and may wait before
// each until its client requests what that response will contain. The relay requests more than any one client, so it
// may receive a removal before the response that leads this client away from the resource. The hold lets that response
// go first. Members of sets are not held: for them the relay requests what the client would. What goes together with
// additions of its type is not held either: see Delta.Additions. Nor are endpoints, once the client has been sent the
// removal of the Cluster that requests them: that was what leads the client away.
// xDS: "Eventual consistency considerations".

// mayRemove returns which removals a response may carry now. The caller holds mu.
func (st *stream) mayRemove() session.RemovalRule {
	if st.types == nil || st.server.options.RemovalHold == 0 {
		return session.RemoveAll // no other type can refer to what is removed
	}
	if since := st.types.held.since; since == 0 || uptime.Duration()-since < st.server.options.RemovalHold {
		return session.RemoveUnnamed
	}
	return session.RemoveAll
}

// holdRemovals records whether there are removals to hold, or some that wait for answers, which counts as holding. It
// wakes the stream when removals have been held for long enough. The caller holds mu.
func (st *stream) holdRemovals(holds, waits bool) {
	if st.types == nil {
		return
	}
	held := &st.types.held
	if !holds && !waits {
		held.since = 0
		return
	}
	if held.since == 0 {
		held.since = uptime.Duration()
	}
	if holds {
		st.wakeBy(held.since + st.server.options.RemovalHold)
	}
}

// wakeBy wakes the stream at a time, by uptime, or earlier. The caller holds mu. The stream has several types.
func (st *stream) wakeBy(at time.Duration) {
	t, now := st.types, uptime.Duration()
	if now < t.wakes && t.wakes <= at {
		return
	}
	t.wakes = at
	if t.timer == nil {
		t.timer = time.AfterFunc(at-now, st.waited)
	} else {
		t.timer.Reset(at - now)
	}
}

// waited wakes the stream if it still waits.
func (st *stream) waited() {
	st.mu.Lock()
	waits := !st.closed && (st.types.held.since != 0 || st.types.waits())
	st.mu.Unlock()
	if waits {
		st.resume()
	}
}

// resume wakes the stream.
func (st *stream) resume() {
	if st.inbox.wake() {
		st.inbox.waker.Wake()
	}
}
