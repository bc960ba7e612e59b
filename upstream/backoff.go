package upstream

import (
	"math/rand/v2"
	"time"
)

// backoff is the time between attempts to open a stream: it grows by half with
// each that brought no response. gRFC A57: "Handling ADS Stream Termination".
type backoff struct {
	base, limit time.Duration
	next        time.Duration // without jitter; 0: base
}

// delay returns the time until the next attempt. Jitter takes up to half of it
// away, lest all streams to a server that has come back come back at once.
func (b *backoff) delay() time.Duration {
	d := min(max(b.next, b.base), b.limit)
	b.next = min(d+d/2, b.limit)
	return d/2 + rand.N(d/2+1)
}

// reset is called when a stream has brought a response.
func (b *backoff) reset() { b.next = 0 }

// pace is the time between two things that clients can wish for. The first is done at
// once. Each that is done as soon as it may be has the next wait for twice as long; one
// that comes after a quiet time of that length begins anew.
type pace struct {
	base, limit time.Duration
	distance    time.Duration // from last to the next
	last        time.Time
}

// shortestRenewal is the shortest time between two streams of which the later was opened
// because clients wish something that needs a new one.
const shortestRenewal = 2 * time.Second

// wait returns in what time the next may be done.
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

// never is when a timer runs out that nobody waits for.
const never = time.Hour
