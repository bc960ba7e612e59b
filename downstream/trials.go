package downstream

import (
	"net"
	"slices"

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
	// IsNew says whether a resource is not accepted.
	IsNew(*cache.Resource) bool
	// Settled says that the client has answered all that it was sent first.
	Settled()
	// Sent, Untouched, Acked and Rejected say what becomes of what is new: the client is being sent
	// some of it, or nothing of it; it has acknowledged all that it was sent; it has rejected some.
	Sent()
	Untouched()
	Acked()
	Rejected(words string)
	// Leave ends it. ended says that the client has ended its stream.
	Leave(ended bool)
}

// streamTrials are those of a stream. Guarded by stream.mu. nil has none.
type streamTrials struct {
	all     []*streamTrial
	resumed bool // the client's first request says that it holds something
}

func (t *streamTrials) each() []*streamTrial {
	if t == nil {
		return nil
	}
	return t.all
}

// streamTrial is a Trial of a stream. Guarded by stream.mu.
type streamTrial struct {
	Trial
	scope cache.Scope
	// onNew: the subscriptions are on the new side.
	onNew   bool
	settled bool
	// types has what is known of the types that are rolled out and of which the client was sent something.
	types map[string]*triedType
	// open are the responses with something new that the client has not answered. told: Sent or
	// Untouched was called since the move. rejected: it has rejected one of them.
	open     []sentNew
	told     bool
	rejected bool
}

// triedType says whether the client's last answer of a type was an ACK.
type triedType struct {
	acked bool
	// new is the nonce of the last response with something new. A client that is a relay may reject it
	// after it has acknowledged it.
	new string
}

// sentNew is a response with something new.
type sentNew struct{ typeURL, nonce string }

// joinTrial begins the stream's part in the rollouts of a scope that it begins to use.
func (s *streamScopes) joinTrial(scope cache.Scope) {
	st := s.stream
	if st.trials == nil {
		return
	}
	_, once := st.grpc.(noStream)
	var conn net.Addr
	if p, ok := peer.FromContext(st.grpc.Context()); ok {
		conn = p.Addr
	}
	t := st.server.options.Rollouts.Join(scope, TrialClient{
		Client: Client{Node: st.node, Identity: st.identity}, Name: st.client(), Conn: conn,
		Eligible: !once, Resumed: st.trials.resumed,
		Wake: func() {
			if st.inbox.wake() {
				st.inbox.waker.Wake()
			}
		},
	})
	if t == nil {
		return
	}
	trial := &streamTrial{Trial: t, scope: scope, onNew: t.OnNew() && !once, types: map[string]*triedType{}}
	if trial.onNew {
		trial.settled = true
		trial.Moved()
	}
	st.trials.all = append(st.trials.all, trial)
}

// leaveTrial ends the stream's part in the rollouts of a scope.
func (s *streamScopes) leaveTrial(scope cache.Scope) {
	st := s.stream
	at := slices.IndexFunc(st.trials.each(), func(t *streamTrial) bool { return t.scope == scope })
	if at < 0 {
		return
	}
	st.trials.all[at].Leave(st.closed && !st.byRelay.Load())
	st.trials.all = slices.Delete(st.trials.all, at, at+1)
}

// side returns the topic that the client watches, of one that its names lead to.
func (st *stream) side(k cache.Key) cache.Key {
	for _, t := range st.trials.each() {
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
	for _, t := range st.trials.each() {
		onNew := t.OnNew()
		if onNew == t.onNew || onNew && !t.settled {
			continue
		}
		t.onNew, t.open, t.told, t.rejected = onNew, nil, false, false
		for _, of := range t.types {
			of.new = ""
		}
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
	for _, t := range st.trials.each() {
		switch {
		case r == nil:
			if t.onNew && !t.told && t.Filled() && !st.hasMore(t) {
				t.told = true
				t.Untouched()
			}
		case t.RollsOut(r.TypeURL):
			if t.types[r.TypeURL] == nil {
				t.types[r.TypeURL] = &triedType{}
			}
			if t.onNew && slices.ContainsFunc(r.News, t.IsNew) {
				if len(t.open) == 0 {
					t.Sent()
				}
				t.types[r.TypeURL].new = r.Nonce
				t.open, t.told = append(t.open, sentNew{r.TypeURL, r.Nonce}), true
			}
		}
	}
	if r != nil {
		r.News = nil
	}
}

// hasMore says that there is something to send of the types that are rolled out.
func (st *stream) hasMore(t *streamTrial) bool {
	return slices.ContainsFunc(st.sessions, func(s typeSession) bool {
		return t.RollsOut(s.TypeURL()) && (s.Adding() || s.Removing())
	})
}

// tryAnswered notes that a client has answered a response of a session, which had so many in
// flight before. rejection is nil for an ACK.
func (st *stream) tryAnswered(s typeSession, had int, rejection *session.NACK) {
	n, _ := s.InFlight()
	for _, t := range st.trials.each() {
		of := t.types[s.TypeURL()]
		if of == nil || n >= had && rejection == nil {
			continue
		}
		of.acked = rejection == nil
		if rejection != nil && t.onNew && (of.new == rejection.Nonce || slices.Contains(t.open, sentNew{s.TypeURL(), rejection.Nonce})) {
			t.rejected = true
			t.Rejected(rejection.Reason)
		}
		if n == 0 && len(t.open) > 0 {
			t.open = slices.DeleteFunc(t.open, func(o sentNew) bool { return o.typeURL == s.TypeURL() })
			if len(t.open) == 0 && !t.rejected {
				t.Acked()
			}
		}
		if !t.settled && !t.onNew && st.tookAll(t) {
			t.settled = true
			t.Settled()
			if t.OnNew() && st.inbox.wake() {
				st.Wake()
			}
		}
	}
}

// tookAll says whether the client has acknowledged what it was sent last of each type that is rolled
// out.
func (st *stream) tookAll(t *streamTrial) bool {
	for _, s := range st.sessions {
		if !t.RollsOut(s.TypeURL()) {
			continue
		}
		of := t.types[s.TypeURL()]
		if n, _ := s.InFlight(); n > 0 || of != nil && !of.acked || of == nil && s.Adding() {
			return false
		}
	}
	return len(t.types) > 0
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
		if !slices.ContainsFunc(st.trials.each(), func(t *streamTrial) bool { return t.scope == scope }) {
			pass(scope, n.TypeURL, n.Reason)
		}
	}
}
