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
