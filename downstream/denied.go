package downstream

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
)

// A stream ends with PERMISSION_DENIED if its client has no right to anything that it requests. The relay does not
// answer a wildcard or a glob to which the client has no right, so without that end the client would wait for ever.

// A client has deniedSettle, and up to as much again, to request something that it may have. A client that was sent
// errors already knows that it is denied, and would reconnect as soon as its stream ends. So it has deniedAfterErrors
// in addition, and up to as much again.
const (
	deniedSettle      = time.Second
	deniedAfterErrors = 2 * time.Second
)

// denial returns why the client may have nothing of what it has subscribed to. It returns nil if the client may have
// some of it, or has subscribed to nothing. The caller holds mu.
func (st *stream) denial() (why *cache.Error) {
	if st.sessionClient.Rights == nil || st.closed {
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

// endIfDenied schedules the end of a stream whose client may have nothing. It is called after each request, and when a
// resource that the client may not have becomes known. The caller holds mu.
func (st *stream) endIfDenied() {
	if st.sessionClient.Rights == nil || st.form == formUnary || st.form == formREST { // these forms answer with an error
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

// endDenied ends the stream, unless the client has requested something that it may have, or was sent errors and has not
// had the time for that.
func (st *stream) endDenied() {
	st.mu.Lock()
	why := st.denial()
	waits := why == nil || st.denies == nil
	if why == nil {
		st.denies = nil
	}
	if !waits && st.nonces > 0 && !st.deniedSent {
		waits, st.deniedSent = true, true
		st.denies.Reset(deniedAfterErrors + rand.N(deniedAfterErrors))
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
