package downstream

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/time/rate"
)

// How fast requests are read: those of a stream, and over REST those of a connection. A
// client that is faster is not cut off, but waits.

const fasterThanRead = "client sends requests faster than they are read"

// newPace returns nil where there is no limit.
func newPace(l Limits) *rate.Limiter {
	if l.RequestsPerSecond == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(l.RequestsPerSecond), max(l.RequestBurst, 1))
}

// pause waits until the next request may be taken, and says whether it had to; not ok if
// ctx ended in the meantime.
func pause(ctx context.Context, pace *rate.Limiter) (waited, ok bool) {
	if pace.Allow() { // as mostly; and it allocates nothing
		return false, true
	}
	// Not Wait, which gives up at once where the client's own deadline is nearer.
	delay := pace.Reserve().Delay()
	if delay == 0 {
		return false, true
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true, true
	case <-ctx.Done():
		return true, false
	}
}

// pace waits until the stream's next request may be read. It says false if the client has
// gone in the meantime.
func (st *stream) pace() bool {
	if st.limits.RequestsPerSecond == 0 {
		return true
	}
	if st.requests == nil {
		st.requests = newPace(st.limits)
	}
	waited, ok := pause(st.grpc.Context(), st.requests)
	if !waited {
		return true
	}
	st.server.stats.limits[limitRequests].Add(1)
	if !st.paced {
		st.paced = true
		if log, ok := st.gate.line(eventPaced, st.logger()); ok {
			log.Warn(fasterThanRead, "limit", limitRequests.String(), "max", st.limits.RequestsPerSecond)
		}
	}
	return ok
}

// paceKey is the key of a REST connection's pace in its context.
type paceKey struct{}

func withPace(ctx context.Context, l Limits) context.Context {
	return context.WithValue(ctx, paceKey{}, newPace(l))
}

// pace waits until the request may be answered. It says false if the client has gone in
// the meantime.
func (h *restHandler) pace(r *http.Request) bool {
	pace, _ := r.Context().Value(paceKey{}).(*rate.Limiter)
	if pace == nil || r.ProtoMajor == 2 { // of which the connection is read more slowly: restListener
		return true
	}
	waited, ok := pause(r.Context(), pace)
	if !waited {
		return true
	}
	h.server.stats.limits[limitRequests].Add(1)
	if log, ok := h.gate.line(eventPaced, h.server.options.Log.With("client", r.RemoteAddr)); ok {
		log.Warn(fasterThanRead, "limit", limitRequests.String(), "max", h.gate.limits.RequestsPerSecond)
	}
	return ok
}
