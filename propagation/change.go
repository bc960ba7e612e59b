package propagation

import (
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Stage is what clients have done with a change.
type Stage uint8

// The stages of a change.
const (
	Sent  Stage = iota // the client was sent it
	ACKed              // the client has accepted it
	stages
)

// String returns the stage in lower case, as in metrics.
func (s Stage) String() string {
	if s == Sent {
		return "sent"
	}
	return "acked"
}

// Client is which client a time is of.
type Client uint8

// The clients whose times are measured.
const (
	First  Client = iota // the first one
	Median               // the one with which half of them have the change
	Last                 // the last one
	milestones
)

// String returns the client in lower case, as in metrics.
func (c Client) String() string {
	switch c {
	case First:
		return "first"
	case Median:
		return "median"
	}
	return "last"
}

// Change is one change, on its way to the clients that it is for.
type Change struct {
	alone   List // the list of only this one
	line    *line
	receipt *Receipt
	clients int64 // that it is for
	limit   time.Time
	period  time.Time // that in which it was opened begins then
	stages  [stages]stage
	closed  atomic.Bool
	left    atomic.Int32 // stages that are not complete
	span    trace.Span   // nil if the response is not sampled
	// begun and opened are moments of line.clock; opened is 0 before Open.
	begun  uint64
	opened atomic.Uint64
}

// stage counts the clients that have reached a stage.
type stage struct {
	n   atomic.Int64 // have reached it
	all atomic.Int64 // are to reach it: without those that are gone

	mu   sync.Mutex
	next Client // that is not measured yet
}

// Expect counts clients that the change is for. It is called before Open.
func (c *Change) Expect(clients int) { c.clients += int64(clients) }

// wasOpenAt reports whether all clients were expected at a moment of line.clock.
func (c *Change) wasOpenAt(moment uint64) bool {
	opened := c.opened.Load()
	return opened != 0 && opened < moment
}

// Open begins the counting, once all clients are expected. Without any, there is nothing to measure.
func (c *Change) Open() {
	if c == nil {
		return
	}
	c.opened.Store(c.line.clock.Add(1))
	if c.clients == 0 {
		return
	}
	for i := range c.stages {
		c.stages[i].all.Store(c.clients)
	}
	c.left.Store(int32(stages))
	c.line.open(c)
}

// reached counts a client that has reached a stage.
func (c *Change) reached(s Stage) {
	at := &c.stages[s]
	n := at.n.Add(1)
	if all := at.all.Load(); n == 1 || n == half(all) || n >= all {
		c.measure(s)
	}
}

// gone counts a client that will not reach a stage.
func (c *Change) gone(s Stage) {
	at := &c.stages[s]
	if all := at.all.Add(-1); at.n.Load() >= half(all) {
		c.measure(s)
	}
}

func half(n int64) int64 { return (n + 1) / 2 }

// measure notes which clients' times have come.
func (c *Change) measure(s Stage) {
	if c.closed.Load() {
		return
	}
	now := time.Now()
	at := &c.stages[s]
	at.mu.Lock()
	n, all, was := at.n.Load(), at.all.Load(), at.next
	for at.next < milestones && !c.closed.Load() {
		if n < max(1, [milestones]int64{1, half(all), all}[at.next]) {
			break
		}
		c.line.reached(c, s, at.next, now)
		at.next++
	}
	over := at.next < milestones && all <= 0 // all are gone
	if over {
		at.next = milestones
	}
	complete := at.next == milestones && was < milestones
	at.mu.Unlock()
	if complete && c.left.Add(-1) == 0 {
		c.line.complete(c)
	}
}

// missing is how many clients have not reached a stage and may do so.
func (c *Change) missing(s Stage) int64 {
	return max(0, c.stages[s].all.Load()-c.stages[s].n.Load())
}
