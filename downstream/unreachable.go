package downstream

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Streams on which nothing can be served end, so that clients try their next server. gRFC A71: "xDS Fallback": a client
// falls back only if its stream to the first server fails before there was a response. So no response is sent on such a
// stream, not even one with the reason.

// A stream ends when nothing could be served for settle, and up to spread longer. Within settle, a client that
// reconnects subscribes to everything that it wants, some of which may be held. The spread keeps many clients from
// reconnecting at the same moment.
const (
	settle = 250 * time.Millisecond
	spread = 500 * time.Millisecond
)

// unservable returns why nothing can be served on the stream. It returns nil if something can, or if the stream has no
// subscriptions. The caller holds mu.
func (st *stream) unservable() error {
	if st.unreachable == Wait {
		return nil
	}
	var reasons []string
	for _, s := range st.sessions {
		hopes, why := s.Servable()
		if hopes {
			return nil
		}
		if why != nil && !slices.Contains(reasons, why.Message) {
			reasons = append(reasons, why.Message)
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return status.Error(codes.Unavailable, loglines.Clip(strings.Join(reasons, "; "))+" (and nothing that this stream subscribes to is held)")
}

// ending schedules the end of a stream on which nothing can be served, and reports whether the stream is one: then
// nothing is sent on it. The caller holds mu.
func (st *stream) ending() bool {
	switch is := st.unservable() != nil; {
	case !is:
		st.spare()
		return false
	case st.ends == nil:
		st.ends = time.AfterFunc(settle+rand.N(spread), st.giveUp)
	}
	return true
}

// spare keeps a stream from ending. The caller holds mu.
func (st *stream) spare() {
	if st.ends != nil {
		st.ends.Stop()
		st.ends = nil
	}
}

// giveUp ends the stream, unless something can be served by now.
func (st *stream) giveUp() {
	st.mu.Lock()
	var why error
	if st.ends != nil && !st.closed {
		why = st.unservable()
	}
	st.mu.Unlock()
	if why == nil {
		return
	}
	st.server.noteGivenUp(st, why)
	st.byRelay.Store(true)
	finish(st.grpc.Context(), why)
}

// noteGivenUp records that a stream ends because nothing can be served on it.
func (s *Server) noteGivenUp(st *stream, why error) {
	s.stats.unreachable.Add(1)
	level := slog.LevelDebug
	log, ok := st.gate.line(eventUnreachable, s.options.Log)
	if ok {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, "stream of a client ends: nothing can be served on it",
		"stream", st.id, "client", st.client(), "reason", status.Convert(why).Message())
}

// undecidedFor is how long a stream on which nothing was sent yet withholds that some control planes are unreachable,
// while it is not known whether the others can be reached. A server that does not accept a connection counts as
// unreachable after 3 s.
const undecidedFor = 5 * time.Second

// waitsForOthers reports that nothing may be sent yet: some of the stream's subscriptions cannot be reached, none can
// be served, and the rest are not known. If the rest cannot be reached either, the stream ends, and its client falls
// back only if nothing was sent. The caller holds mu.
func (st *stream) waitsForOthers() bool {
	if st.unreachable == Wait || st.nonces > 0 || st.seldom != nil && st.seldom.undecided.over {
		return false
	}
	if !slices.ContainsFunc(st.sessions, typeSession.Unreachable) || slices.ContainsFunc(st.sessions, typeSession.Decided) {
		return false
	}
	if u := &st.seldomUsed().undecided; u.timer == nil {
		u.timer = time.AfterFunc(undecidedFor, st.decide)
	}
	return true
}

// decide ends the wait for others.
func (st *stream) decide() {
	st.mu.Lock()
	st.seldom.undecided.over = true
	st.mu.Unlock()
	st.resume()
}
