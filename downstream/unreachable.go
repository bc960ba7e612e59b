package downstream

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
)

// Streams that nothing can be served on end, so that clients try their next server.
// gRFC A71: "xDS Fallback": a client falls back only if its stream to the first server
// fails before there was a response. So on such a stream no response is sent, not even
// one that says why.

// WhenUnreachable says which streams end when the control planes of all that they ask
// for cannot be reached and nothing of that is held.
type WhenUnreachable uint8

// Which streams can end.
const (
	// Wait: none.
	Wait WhenUnreachable = iota
	// EndNames: those that subscribe to names only, as gRPC's do.
	EndNames
	// EndAll: those that subscribe to wildcards and globs too.
	EndAll
)

// A stream ends when nothing could be served for settle, and up to spread more. Within
// settle a client that comes back subscribes to all that it wants, of which something may
// be held. The spread keeps many clients from coming back at the same moment.
const (
	settle = 250 * time.Millisecond
	spread = 500 * time.Millisecond
)

// reckon counts a name whose control plane cannot be reached and of which nothing is
// held.
func (s *subscriptions) reckon(sub *nameSub) {
	var st cache.State
	switch {
	case s.unreachable == Wait || sub.entry() == nil:
		return
	case sub.is(isRare):
		if st = sub.stated(); sub.rare().kept != nil {
			st.Status = cache.Present
		}
	default:
		st = sub.entry().State()
	}
	s.countLost(sub, st.Unreachable())
	if sub.isLost() {
		s.trouble.lostFor = st.Err
	}
}

func (s *subscriptions) countLost(sub *nameSub, lost bool) {
	switch {
	case lost == sub.isLost():
		return
	case lost:
		s.troubled().lost++
	default:
		s.trouble.lost--
	}
	sub.setLost(lost)
}

// reckonSet is reckon for a wildcard or a glob.
func (s *subscriptions) reckonSet(set *setSub) {
	if s.unreachable != EndAll || set.set == nil {
		return
	}
	is, err := set.status()
	s.countLostSet(set, is == cache.Failed && err.Unreachable())
	if set.lost {
		s.trouble.lostFor = err
	}
}

func (s *subscriptions) countLostSet(set *setSub, lost bool) {
	switch {
	case lost == set.lost:
		return
	case lost:
		s.troubled().lost++
	default:
		s.trouble.lost--
	}
	set.lost = lost
}

// hopes says whether something that is subscribed to is held or may come, and if not,
// why: nil if nothing is subscribed to but what was refused.
func (s *subscriptions) hopes() (bool, *cache.Error) {
	t := s.trouble
	if t == nil {
		return s.named.len() > 0 || s.hasSets(), nil
	}
	refused := t.refused
	if s.wild != nil && s.wild.set == nil {
		refused++
	}
	all := s.named.len() + len(s.byGlob)
	if s.wild != nil {
		all++
	}
	switch {
	case t.lost+refused < all:
		return true, nil
	case t.lost == 0:
		return false, nil
	}
	return false, t.lostFor
}

// unservable says why nothing can be served on the stream: nil if something can, or
// nothing is subscribed to. The caller holds mu.
func (st *stream) unservable() error {
	if st.able.unreachable == Wait {
		return nil
	}
	var reasons []string
	for _, s := range st.sessions {
		hopes, why := s.hopes()
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

// ending sees that a stream ends on which nothing can be served, and says whether it is
// one: then nothing is sent on it. The caller holds mu.
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
	finish(st.grpc.Context(), why)
}

// noteGivenUp notes that a stream ends because nothing can be served on it.
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

// undecidedFor is how long a stream on which nothing was sent yet keeps back that some control
// planes cannot be reached, while it is not known whether the others can. A server that does
// not accept a connection counts as unreachable after 3 s.
const undecidedFor = 5 * time.Second

// undecided is such a time of a stream.
type undecided struct {
	over  bool
	timer *time.Timer
}

// waitsForOthers says that nothing may be sent yet: some of what the stream subscribes to cannot
// be reached, none of it can be served, and the rest is not known. If that cannot be reached
// either, the stream ends, and its client falls back only if nothing was sent. The caller holds
// mu.
func (st *stream) waitsForOthers() bool {
	if st.able.unreachable == Wait || st.nonces > 0 || st.undecided != nil && st.undecided.over {
		return false
	}
	if !slices.ContainsFunc(st.sessions, session.lacks) || slices.ContainsFunc(st.sessions, session.decided) {
		return false
	}
	if st.undecided == nil {
		st.undecided = &undecided{timer: time.AfterFunc(undecidedFor, st.decide)}
	}
	return true
}

// decide ends the waiting for others.
func (st *stream) decide() {
	st.mu.Lock()
	st.undecided.over = true
	st.mu.Unlock()
	st.resume()
}

// lacks says that some of what is subscribed to cannot be reached, and is not held.
func (s *subscriptions) lacks() bool { return s.trouble != nil && s.trouble.lost > 0 }

// decided says that the stream is kept: something is known of what is subscribed to, or it is
// a set for which streams do not end.
func (s *subscriptions) decided() bool {
	for set := range s.sets() {
		if set.set == nil || set.lost {
			continue // refused, or lost
		}
		if is, _ := set.status(); is != cache.Requested || s.unreachable != EndAll {
			return true
		}
	}
	for sub := range s.named.all() {
		if sub.isLost() || sub.entry() == nil {
			continue
		}
		if sub.stated().Status != cache.Requested || sub.is(isRare) && sub.rare().kept != nil {
			return true
		}
	}
	return false
}

// finish ends a gRPC stream whose handler waits for the client. gRPC has no way to
// interrupt a handler other than by the stream's end, and what can end it is reachable
// by its context only.
func finish(ctx context.Context, why error) {
	type finisher interface {
		WriteStatus(*status.Status) error
	}
	if f, ok := grpc.ServerTransportStreamFromContext(ctx).(finisher); ok {
		_ = f.WriteStatus(status.Convert(why)) // fails if the client has gone
	}
}
