package downstream

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/chain"
)

// A new configuration while streams are open. Each stream gets new Names for its client, and its sessions look up their
// subscriptions again (Reconfigure in package session).
//
// One separate goroutine does this for one stream after another: it occupies no sender, and yields to all runnable
// goroutines after each stream. So while there is much to look up, the relay still stores responses of control planes
// and sends them to the streams. What a stream is sent depends on the configuration that this stream has. Two things
// do not wait for a stream's turn: a request is processed by the newest configuration, and a stream with few
// subscriptions, or with restricting rights, is sent nothing by an older one.

// fewSubscriptions can be looked up in about the time that a response takes.
const fewSubscriptions = 16

// mostSettling is the longest time that removals wait: control planes answer in that time.
const mostSettling = 15 * time.Second

// dismissSpread keeps clients that are no longer admitted from reconnecting at the same moment.
const dismissSpread = time.Second

// Reconfigure changes the meaning of the names that clients use, and their rights. New streams get the new meaning at
// once, and open ones soon after, one by one. Reconfigure does not wait for them.
//
// A subscription whose topic stays is not touched. If a subscription moves to another topic, the client keeps what it
// has until that topic has an answer, and is then sent the difference.
func (s *Server) Reconfigure(names func(Client) Names) {
	s.mu.Lock()
	s.naming.Store(&naming{of: names, generation: s.naming.Load().generation + 1})
	s.next = s.streams.first
	start := !s.running
	s.running = true
	s.mu.Unlock()
	if start {
		go s.reconfigureAll()
	}
	go s.loadCalls.dismiss()
}

// reconfigureAll has each stream use the newest configuration. If Reconfigure is called in the middle, it starts over.
func (s *Server) reconfigureAll() {
	for st := s.nextStream(); st != nil; st = s.nextStream() {
		st.mu.Lock()
		_ = st.reconfigure()
		st.mu.Unlock()
		runtime.Gosched()
	}
}

func (s *Server) nextStream() *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.next
	if st == nil {
		s.running = false
		return nil
	}
	s.next = st.after
	return st
}

// useNames gives the stream the Names of a configuration. The caller holds mu.
func (st *stream) useNames(n *naming, through chain.Chain) {
	c := Client{Node: st.node, Through: st.proven(through), End: st.endLoop, Identity: st.identity}
	var own func(context.Context, Client) Names
	if st.gate != nil {
		g := st.gate.door.newest.Load()
		c.SecretsForAnyone, own = g.secretsForAnyone, g.names
	}
	if own != nil {
		st.names = own(st.grpc.Context(), c)
	} else {
		st.names = n.of(c)
	}
	st.sessionClient.Rights, st.sessionClient.Generation = nil, n.generation
	if names, ok := st.names.(Restricted); ok {
		st.sessionClient.Rights = names.Rights()
	}
	if st.isRestricted() && !n.restricts.Load() {
		n.restricts.Store(true)
	}
}

// isRestricted reports that rules decide what the client may have. The caller holds mu.
func (st *stream) isRestricted() bool {
	return st.sessionClient.Rights != nil && st.sessionClient.Rights.Class() != 0
}

// waitsForTurn reports that the stream may be sent something before it uses the newest configuration: it has many
// subscriptions, and rights do not restrict them. The caller holds mu.
func (st *stream) waitsForTurn() bool {
	n := st.server.naming.Load()
	if st.sessionClient.Generation == n.generation || st.isRestricted() || n.restricts.Load() {
		return false
	}
	subscribed := 0
	for _, s := range st.sessions {
		subscribed += s.Subscribed()
	}
	return subscribed > fewSubscriptions
}

// reconfigure has the stream use the newest configuration, unless it does already. The error is why the listener no
// longer admits its client: the stream ends with it. The caller holds mu, and not the topics.
func (st *stream) reconfigure() error {
	n := st.server.naming.Load()
	if st.names == nil || st.closed || st.dismissed || st.sessionClient.Generation == n.generation {
		return nil
	}
	if err := st.notAdmitted(); err != nil {
		st.sessionClient.Generation = n.generation
		return err
	}
	through, err := st.through()
	if err != nil { // not reached: it was parsed before
		return err
	}
	old, restricted := st.names, st.sessionClient.Rights != nil
	st.useNames(n, through)
	if user, ok := st.names.(ScopeUser); ok {
		for scope := range st.scopes.all() {
			user.Enter(scope)
		}
		if why := user.Loop(); why != nil {
			old.Close()
			return st.dismiss(loopStatus(why))
		}
	}
	restricted = restricted || st.sessionClient.Rights != nil
	request := st.topics.Cache().Requests().Begin()
	for _, s := range st.sessions {
		s.Reconfigure(st.sessionClient.Rights, n.generation, restricted)
	}
	st.topics.Cache().Requests().End(request)
	old.Close()
	st.joinNewTrials()
	st.restartPrefetch()
	st.scopes.excess = nil // the client has not requested more
	for _, s := range st.sessions {
		st.recountNames(s)
		st.stands(s)
	}
	st.endIfDenied()
	if len(st.sessions) > 1 && slices.ContainsFunc(st.sessions, typeSession.Moving) {
		st.movedAt = max(now(), 1)
		time.AfterFunc(mostSettling, st.resume)
	}
	if slices.ContainsFunc(st.sessions, func(s typeSession) bool { return s.Adding() || s.Removing() }) {
		st.resume()
	}
	return nil
}

// settles reports that something has moved by the newest configuration and has no answer yet. Then no removals are sent
// for a while: types that come later in the order may still refer to the removed resources. The caller holds mu.
// xDS: "Eventual consistency considerations".
func (st *stream) settles() bool {
	if st.movedAt == 0 {
		return false
	}
	if st.movedAt.ago() >= mostSettling || !slices.ContainsFunc(st.sessions, typeSession.Moving) {
		st.movedAt = 0
		return false
	}
	return true
}

// stillAllowed is called with a response that was composed together with one that has just been sent, which can take
// very long. If the configuration has changed since then, and its listener does not admit the client any more or rights
// restrict it, the stream ends: the client may not be allowed what is in the response.
func (st *stream) stillAllowed(r *session.Response) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	n := st.server.naming.Load()
	switch {
	case st.closed || st.dismissed:
		return errDismissed
	case r.Generation == n.generation:
		return nil
	}
	if err := st.notAdmitted(); err != nil {
		return err
	}
	if !st.isRestricted() && !n.restricts.Load() {
		return nil
	}
	st.dismissed = true
	st.byRelay.Store(true)
	finish(st.grpc.Context(), errDismissed)
	return errDismissed
}

// errDismissed ends a stream whose client has to come again.
var errDismissed = status.Error(codes.Unavailable, "the relay's configuration has changed; connect again")

// notAdmitted returns why the listener no longer serves the stream's client, and ends the stream with that. A request
// that is answered once continues.
func (st *stream) notAdmitted() error {
	if _, once := st.grpc.(noStream); once || st.gate == nil {
		return nil
	}
	admits := st.gate.door.newest.Load().admits
	if admits == nil {
		return nil
	}
	err := admits(st.identity)
	if err == nil {
		return nil
	}
	st.server.noteRefusedClient(st.grpc.Context(), st.gate, err)
	return st.dismiss(err)
}

// dismiss ends the stream with an error, which it returns, because of a new configuration. The caller holds mu.
func (st *stream) dismiss(err error) error {
	ctx := st.grpc.Context()
	st.dismissed = true
	st.byRelay.Store(true)
	time.AfterFunc(rand.N(dismissSpread), func() { finish(ctx, err) })
	return err
}
