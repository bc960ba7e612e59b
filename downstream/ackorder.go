package downstream

import (
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/uptime"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Make before break with acknowledgement. xDS: "Eventual consistency considerations".
//
// Envoy acknowledges a response with new Clusters when they are warm: when it has their endpoints and secrets. If it has
// the route to a Cluster earlier, it answers requests with 503. So on a stream with Clusters and types that may refer to
// them, the additions of these types, and all removals, wait while a response with Clusters to warm is unanswered. A
// resource to which others may refer is removed after the client has answered what leads it elsewhere. The removal also
// waits for a moment after that was sent: a new Listener has to request its route first.
//
// Each change waits for answerTimeout at most, so Clusters that change all the time starve no route. Nothing waits for
// the first answers of a stream, which gives a client that starts or reconnects all that it lacks at once. So a client
// that never answers is not waited for either. Of relays in a row, the last one does this.

// ackOrder is what the stream knows of the order of its types.
type ackOrder struct {
	// clusters has a bit for each session of Clusters, by its index, and later a bit for each session of a type that
	// waits for them. Both are 0 if nothing waits.
	clusters, later uint64
	// referenced has a bit for each session of a type to which others refer.
	referenced uint64
	// additions and removals are since when some wait, by uptime; 0 if none do. sent is when the client was last sent
	// something of a later type; 0 if never.
	additions, removals, sent time.Duration
}

// place records the sessions, which have new indexes.
func (o *ackOrder) place(sessions []typeSession, relay bool) {
	o.clusters, o.later, o.referenced = 0, 0, 0
	for i, s := range sessions {
		of := xdstype.Of(s.TypeURL())
		if of.Referenced {
			o.referenced |= 1 << i
		}
		switch of {
		case xdstype.Cluster:
			o.clusters |= 1 << i
		case xdstype.Endpoints, xdstype.LocalityEndpoints, xdstype.Secret:
			// Clusters need these to be warm.
		default:
			o.later |= 1 << i
		}
	}
	if relay || o.clusters == 0 || o.later == 0 {
		o.clusters, o.later = 0, 0
	}
}

// waits reports that something waits for the client's answer. nil waits for nothing.
func (t *severalTypes) waits() bool {
	return t != nil && (t.order.additions != 0 || t.order.removals != 0)
}

// waitsForClusters reports that the additions of the session with that index wait for an answer.
func (st *stream) waitsForClusters(i int) bool {
	t := st.types
	return t != nil && t.order.later&(1<<i) != 0 && st.sessions[i].LastAnswer() != session.NoAnswer &&
		!overdue(t.order.additions) && st.warming()
}

// warming reports that the client warms Clusters.
func (st *stream) warming() bool {
	for i, s := range st.sessions {
		if st.types.order.clusters&(1<<i) != 0 && s.Warming() {
			return true
		}
	}
	return false
}

// overdue reports that what waits since then has waited long enough.
func overdue(since time.Duration) bool { return since != 0 && uptime.Duration()-since >= answerTimeout }

// additionsWait records whether additions wait.
func (st *stream) additionsWait(wait bool) {
	if st.types != nil && st.noteWait(&st.types.order.additions, wait) {
		st.wakeBy(st.types.order.additions + answerTimeout)
	}
}

// noteWait sets since when something waits, and returns whether it does.
func (st *stream) noteWait(since *time.Duration, wait bool) bool {
	switch {
	case !wait:
		*since = 0
	case *since == 0:
		*since = uptime.Duration()
	}
	return wait
}

// waitsForAnswers reports that the removals of the session with that index wait.
func (st *stream) waitsForAnswers(i int) bool {
	t := st.types
	if t == nil || t.order.clusters == 0 || overdue(t.order.removals) {
		return false
	}
	return st.warming() || t.order.referenced&(1<<i) != 0 && (st.laterUnanswered() || st.laterSentLately())
}

// laterUnanswered reports that the client has not answered a response of a later type, which may lead it elsewhere.
func (st *stream) laterUnanswered() bool {
	for i, s := range st.sessions {
		if n, _ := s.InFlight(); n > 0 && st.types.order.later&(1<<i) != 0 && s.LastAnswer() != session.NoAnswer {
			return true
		}
	}
	return false
}

// laterSentLately reports that a response of a later type was sent a moment ago.
func (st *stream) laterSentLately() bool {
	sent := st.types.order.sent
	return sent != 0 && uptime.Duration()-sent < st.server.options.RemovalHold
}

// removalsWait records whether removals wait.
func (st *stream) removalsWait(wait bool) {
	if st.types == nil || !st.noteWait(&st.types.order.removals, wait) {
		return
	}
	o := &st.types.order
	st.wakeBy(o.removals + answerTimeout)
	if st.laterSentLately() {
		st.wakeBy(o.sent + st.server.options.RemovalHold)
	}
}

// mayJoin returns which removals of the session with that index may go with its additions.
func (st *stream) mayJoin(i int) session.RemovalRule {
	if t := st.types; t != nil && t.order.clusters != 0 && t.order.referenced&(1<<i) != 0 {
		return session.RemoveAbsent
	}
	return session.RemoveAll
}

// noteOrder records a response of the session with that index that is about to be sent.
func (st *stream) noteOrder(i int, r *session.Response) {
	if st.types == nil {
		return
	}
	switch o := &st.types.order; {
	case o.clusters&(1<<i) != 0:
		r.Warms = st.sessions[i].LastAnswer() != session.NoAnswer && slices.ContainsFunc(r.Changed, session.Warms)
	case o.later&(1<<i) != 0:
		o.sent = uptime.Duration()
	}
}

// backward iterates over the sessions in the order of their removals: that of their types backward. But Clusters, which
// refer to endpoints, go before these.
func (st *stream) backward(yield func(int, typeSession) bool) {
	first := len(st.sessions)
	for first > 0 && xdstype.Of(st.sessions[first-1].TypeURL()).Order > xdstype.Endpoints.Order {
		first--
		if !yield(first, st.sessions[first]) {
			return
		}
	}
	for i, s := range st.sessions[:first] {
		if !yield(i, s) {
			return
		}
	}
}
