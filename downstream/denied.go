package downstream

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
)

// Streams whose clients may have nothing of what they ask for end with PERMISSION_DENIED. What they
// may not have by a wildcard or a glob is not answered, so they would wait for ever.

// A client has deniedSettle, and up to as much more, to ask for something that it may have. One that
// was sent errors knows already, and if it comes back it does so at once: it has longer.
const (
	deniedSettle = time.Second
	deniedTold   = 2 * time.Second
)

// denial returns why the client may have nothing of what it is subscribed to; nil if it may have
// some of it, or has subscribed to nothing. The caller holds mu.
func (st *stream) denial() (why *cache.Error) {
	if st.who.Rights == nil || st.closed {
		return nil
	}
	for _, s := range st.sessions {
		switch denied, reason := s.Denied(); {
		case !denied:
			return nil
		case reason != nil:
			why = reason
		}
	}
	return why
}

// endIfDenied sees that a stream ends whose client may have nothing. It is called after each
// request, and when a resource has become known that the client may not have, by who holds mu.
func (st *stream) endIfDenied() {
	if st.who.Rights == nil || st.form == formUnary || st.form == formREST { // which are answered
		return
	}
	switch denied := st.denial() != nil; {
	case !denied && st.denies != nil:
		st.denies.Stop()
		st.denies = nil
	case denied && st.denies == nil:
		st.deniedSent = false
		st.denies = time.AfterFunc(deniedSettle+rand.N(deniedSettle), st.endDenied)
	}
}

// endDenied ends the stream, unless the client has asked for something that it may have, or was told
// and has not had the time for that.
func (st *stream) endDenied() {
	st.mu.Lock()
	why := st.denial()
	waits := why == nil || st.denies == nil
	if why == nil {
		st.denies = nil
	}
	if !waits && st.nonces > 0 && !st.deniedSent {
		waits, st.deniedSent = true, true
		st.denies.Reset(deniedTold + rand.N(deniedTold))
	}
	st.mu.Unlock()
	if waits {
		return
	}
	st.server.stats.denied.Add(1)
	level := slog.LevelDebug
	log, ok := st.gate.line(eventDenied, st.server.options.Log)
	if ok {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, "stream of a client ends: it may have nothing of what it asks for",
		"stream", st.id, "client", st.client(), "reason", why.Message)
	st.byRelay.Store(true)
	finish(st.grpc.Context(), status.Error(why.Code, why.Message))
}
