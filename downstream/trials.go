package downstream

import (
	"net"
	"slices"
	"strconv"

	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// Rollouts: clients that get a change before others. Such a client is on the new side of a scope, and
// watches other topics there (cache.Scope.New). Whoever decides that tells the stream, which moves
// its subscriptions when it next composes a response, and says what the client makes of it.

// Rollouts decide which clients of a scope are on the new side.
type Rollouts interface {
	// Join begins a stream's part in the rollouts of an accepted scope; nil if it has none.
	Join(scope cache.Scope, c TrialClient) Trial
}

// TrialClient is what Rollouts know of a stream.
type TrialClient struct {
	Client
	// Name is the id of the client's Node, or its address where that is empty. Conn is its connection,
	// of which each has one value.
	Name string
	Conn net.Addr
	// Eligible: it can be on the new side. A request that is answered once cannot.
	Eligible bool
	// Resumed: the client holds something from an earlier stream.
	Resumed bool
	// Wake has the stream look at OnNew and Filled. It does not block.
	Wake func()
}

// Trial is a stream's part in the rollouts of one scope. Its methods do not block, and take no locks
// but those that come last.
type Trial interface {
	// RollsOut says whether changes of a type are rolled out.
	RollsOut(typeURL string) bool
	// OnNew says whether the stream is to be on the new side.
	OnNew() bool
	// Moved says that the stream has moved to the new side. Filled says whether all that it
	// watches there has a state since, as far as one is known.
	Moved()
	Filled() bool
	// Settled says that the client has answered all that it was sent first.
	Settled()
	// Sent, Untouched, Acked and Rejected say what becomes of what is new: the client is being sent
	// some of it, or nothing of it; it has acknowledged all that it was sent; it has rejected some.
	Sent()
	Untouched()
	Acked()
	Rejected(words string)
	// Leave ends it. ended says that the stream has ended.
	Leave(ended bool)
}

// streamTrial is a Trial of a stream. Guarded by stream.mu.
type streamTrial struct {
	Trial
	scope cache.Scope
	// onNew: the subscriptions are on the new side. movedAt is the number of responses before that.
	onNew   bool
	movedAt uint64
	settled bool
	// open: the client has not answered all that it was sent of what is new. told: Sent or Untouched
	// was called since the move.
	open, told bool
}

// joinTrial begins the stream's part in the rollouts of a scope that it begins to use.
func (s *streamScopes) joinTrial(scope cache.Scope) {
	st := s.stream
	if st.server.options.Rollouts == nil {
		return
	}
	_, once := st.grpc.(noStream)
	var conn net.Addr
	if p, ok := peer.FromContext(st.grpc.Context()); ok {
		conn = p.Addr
	}
	t := st.server.options.Rollouts.Join(scope, TrialClient{
		Client: Client{Node: st.node, Identity: st.identity}, Name: st.client(), Conn: conn,
		Eligible: !once, Resumed: st.resumed,
		Wake: func() {
			if st.inbox.wake() {
				st.inbox.waker.Wake()
			}
		},
	})
	if t == nil {
		return
	}
	trial := &streamTrial{Trial: t, scope: scope, onNew: t.OnNew() && !once}
	if trial.onNew {
		trial.settled = true
		trial.Moved()
	}
	st.trials = append(st.trials, trial)
}

// leaveTrial ends the stream's part in the rollouts of a scope.
func (s *streamScopes) leaveTrial(scope cache.Scope) {
	st := s.stream
	at := slices.IndexFunc(st.trials, func(t *streamTrial) bool { return t.scope == scope })
	if at < 0 {
		return
	}
	st.trials[at].Leave(st.closed)
	st.trials = slices.Delete(st.trials, at, at+1)
}

// side returns the topic that the client watches, of one that its names lead to.
func (st *stream) side(k cache.Key) cache.Key {
	for _, t := range st.trials {
		if t.onNew && t.scope == k.Scope.Accepted() && t.RollsOut(k.TypeURL) {
			k.Scope.New = true
		}
	}
	return k
}

// switchSides moves the subscriptions of the scopes of which the stream is to be on the other side.
// The cache must not be held.
func (st *stream) switchSides() {
	if st.closed {
		return
	}
	for _, t := range st.trials {
		onNew := t.OnNew()
		if onNew == t.onNew || onNew && !t.settled {
			continue
		}
		t.onNew, t.movedAt, t.open, t.told = onNew, st.nonces, false, false
		for _, s := range st.sessions {
			if t.RollsOut(s.TypeURL()) {
				s.Show(t.scope, onNew)
			}
		}
		if onNew {
			t.Moved()
		}
	}
}

// composed notes what was composed for the client, nil for nothing.
func (st *stream) composed(r *session.Response) {
	for _, t := range st.trials {
		switch {
		case !t.onNew:
		case r != nil && t.RollsOut(r.TypeURL):
			if !t.open {
				t.Sent()
			}
			t.open, t.told = true, true
		case r == nil && !t.told && t.Filled() && !st.hasMore(t):
			t.told = true
			t.Untouched()
		}
	}
}

// hasMore says that there is something to send of the types that are rolled out.
func (st *stream) hasMore(t *streamTrial) bool {
	return slices.ContainsFunc(st.sessions, func(s typeSession) bool {
		return t.RollsOut(s.TypeURL()) && (s.Adding() || s.Removing())
	})
}

// tryAnswered notes that the client may have answered a response.
func (st *stream) tryAnswered() {
	for _, t := range st.trials {
		if t.settled && !t.open {
			continue
		}
		waits := slices.ContainsFunc(st.sessions, func(s typeSession) bool {
			n, _ := s.InFlight()
			return n > 0 && t.RollsOut(s.TypeURL())
		})
		switch {
		case waits:
		case t.open:
			t.open = false
			t.Acked()
		case st.nonces > 0 && !t.onNew:
			t.settled = true
			t.Settled()
			if t.OnNew() && st.inbox.wake() {
				st.Wake()
			}
		}
	}
}

// tryRejected notes that the client has rejected a response.
func (st *stream) tryRejected(n *session.NACK) {
	for _, t := range st.trials {
		if nonce, err := strconv.ParseUint(n.Nonce, 10, 64); err == nil && t.onNew && nonce > t.movedAt && t.RollsOut(n.TypeURL) {
			t.Rejected(n.Reason)
		}
	}
}

// passOn passes a rejection on to the control planes that may have sent what was rejected, if that is
// what they have sent last. Where there is a rollout, that is for the rollout to do.
func (st *stream) passOn(s typeSession, n *session.NACK) {
	pass := st.server.options.Rejected
	if pass == nil {
		return
	}
	if inFlight, _ := s.InFlight(); inFlight > 0 || s.Adding() || s.Removing() || st.inbox.hasNews() {
		return // there is something newer
	}
	for scope := range st.scopes.all() {
		if !slices.ContainsFunc(st.trials, func(t *streamTrial) bool { return t.scope == scope }) {
			pass(scope, n.TypeURL, n.Reason)
		}
	}
}
