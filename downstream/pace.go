package downstream

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/xds-relay/xds-relay/internal/uptime"
)

// How fast requests are read: those of a stream, and over REST those of a connection. A faster client is not cut off,
// but waits.

const fasterThanRead = "client sends requests faster than they are read"

// requestPace is how fast the requests of a stream are read. It is a rate.Limiter without a lock, which is small, as
// there are very many streams. The zero value is ready.
type requestPace struct {
	unpaid float64       // requests that still count
	at     time.Duration // as of when they count, by uptime
}

// moment is a time in milliseconds since the process started, modulo 2^32: it is small in memory.
type moment uint32

func now() moment { return moment(uptime.Millis()) }

// ago returns how long m is past, if that is less than 49 days.
func (m moment) ago() time.Duration { return time.Duration(now()-m) * time.Millisecond }

// time returns m as a time.Time, zero for moment 0.
func (m moment) time() time.Time {
	if m == 0 {
		return time.Time{}
	}
	return time.Now().Add(-m.ago())
}

// take counts a request, and returns how long the request has to wait.
func (p *requestPace) take(perSecond, burst int, now time.Duration) (wait time.Duration) {
	if p.unpaid > 0 {
		p.unpaid = max(0, p.unpaid-(now-p.at).Seconds()*float64(perSecond))
	}
	p.at = now
	p.unpaid++
	over := p.unpaid - float64(max(burst, 1))
	return time.Duration(max(0, over) / float64(perSecond) * float64(time.Second))
}

// newPace returns nil if there is no limit.
func newPace(l Limits) *rate.Limiter {
	if l.RequestsPerSecond == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(l.RequestsPerSecond), max(l.RequestBurst, 1))
}

// pause waits until the next request may be read. waited reports whether it had to wait. ok is false if ctx ended
// first.
func pause(ctx context.Context, pace *rate.Limiter) (waited, ok bool) {
	if pace.Allow() { // the usual case, without allocation
		return false, true
	}
	// Not Wait, which gives up at once if the client's own deadline is nearer.
	delay := pace.Reserve().Delay()
	if delay == 0 {
		return false, true
	}
	return true, sleep(ctx, delay)
}

// sleep waits, and returns false if ctx ended first.
func sleep(ctx context.Context, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
