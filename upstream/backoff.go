package upstream

import (
	"math/rand/v2"
	"time"
)

// backoff is the time between attempts to open a stream. It grows by half with
// each stream that brought no response. gRFC A57: "Handling ADS Stream Termination".
type backoff struct {
	base, limit time.Duration
	next        time.Duration // without jitter; 0: base
}

// delay returns the time until the next attempt. Jitter shortens it by up to a half,
// so that not all streams return at once to a server that was restarted.
func (b *backoff) delay() time.Duration {
	d := min(max(b.next, b.base), b.limit)
	b.next = min(d+d/2, b.limit)
	return d/2 + rand.N(d/2+1)
}

// reset is called when a stream has brought a response.
func (b *backoff) reset() { b.next = 0 }

// pace bounds how often something is done because of clients. The first time it is done at
// once. If it is done again soon, the time to the next doubles, up to limit. After a quiet time
// of twice that length, the time is base again.
type pace struct {
	base, limit time.Duration
	distance    time.Duration // from last to the next time
	last        time.Time
}

// shortestRenewal is the shortest time between two streams of which the later was opened
// because clients have requested something that needs a new stream.
const shortestRenewal = 2 * time.Second

// wait returns the time until it may be done again.
func (p *pace) wait(now time.Time) time.Duration { return p.last.Add(p.distance).Sub(now) }

// took notes that it was done.
func (p *pace) took(now time.Time) {
	if now.Sub(p.last) < 2*p.distance {
		p.distance = min(2*p.distance, p.limit)
	} else {
		p.distance = p.base
	}
	p.last = now
}

// never is the duration of a timer that nobody waits for.
const never = time.Hour
