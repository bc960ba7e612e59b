package downstream

import (
	"context"
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
