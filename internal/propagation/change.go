package propagation

import (
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Stage is how far a change has come at a client.
type Stage uint8

// The stages of a change.
const (
	Sent  Stage = iota // the relay has sent the change to the client
	ACKed              // the client has accepted the change
	stages
)

// String returns the stage in lower case, as in metrics.
func (s Stage) String() string {
	if s == Sent {
		return "sent"
	}
	return "acked"
}

// Client says which client reached a stage at a measured time.
type Client uint8

// The clients whose times are measured.
const (
	First  Client = iota // the first one
	Median               // the one with which half of the clients have the change
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

// Change is one change, on its way to its clients.
type Change struct {
	alone List // a list with only this change
	*Progress
	line    *line
	receipt *Receipt
	clients int64     // number of clients that have to receive the change
	limit   time.Time // when the change is given up
	period  time.Time // beginning of the Period in which the change was opened
	closed  atomic.Bool
	left    atomic.Int32 // number of stages that are not complete
	span    trace.Span   // nil if the response is not sampled
	// begun and opened are values of line.clock; opened is 0 before Open.
	begun  uint64
	opened atomic.Uint64
}

// Progress counts the clients that have a change. It outlives the measuring, and holds nothing but the counts.
type Progress struct {
	stages [stages]stage
	nacked atomic.Int64
	// lastNACK is when a client rejected the change last, in nanoseconds since 1970.
	lastNACK atomic.Int64
}

// Reached is how far a change has come.
type Reached struct {
	// Clients is how many clients receive the change, without those that have left or need it no more.
	Clients int64
	// Sent, ACKed and NACKed count clients. LastSent and LastACKed are when the last of all clients was sent the change,
	// and accepted it: zero before that. LastNACKed is when a client last rejected a response with it.
	Sent, ACKed, NACKed             int64
	LastSent, LastACKed, LastNACKed time.Time
}

// Reached returns how far the change has come. p may be nil.
func (p *Progress) Reached() (r Reached) {
	if p == nil {
		return r
	}
	moment := func(nanos int64) (t time.Time) {
		if nanos != 0 {
			t = time.Unix(0, nanos)
		}
		return t
	}
	r.Clients = max(p.stages[Sent].all.Load(), 0)
	r.Sent, r.ACKed, r.NACKed = p.stages[Sent].n.Load(), p.stages[ACKed].n.Load(), p.nacked.Load()
	r.LastSent, r.LastACKed, r.LastNACKed = moment(p.stages[Sent].last.Load()), moment(p.stages[ACKed].last.Load()), moment(p.lastNACK.Load())
	return r
}

// stage counts the clients that have reached a stage.
type stage struct {
	n atomic.Int64 // clients that have reached the stage
	// all is the number of clients that have reached the stage or still can: without those that are gone. Before Open
	// it is 0 or less: only those that are gone are counted.
	all atomic.Int64
	// last is when the last client reached the stage, in nanoseconds since 1970; 0 before that.
	last atomic.Int64

	mu   sync.Mutex
	next Client // the next one to be measured
}

// Expect adds clients that have to receive the change. It is called before Open.
func (c *Change) Expect(clients int) { c.clients += int64(clients) }

// wasOpenAt reports whether the change was open at a value of line.clock.
func (c *Change) wasOpenAt(moment uint64) bool {
	opened := c.opened.Load()
	return opened != 0 && opened < moment
}

// Open begins the measuring, after Expect was called for all clients. Clients may reach the change or leave before
// that: they are counted, and measured now. Without clients, there is nothing to measure.
func (c *Change) Open() {
	if c == nil {
		return
	}
	if c.clients > 0 {
		for i := range c.stages {
			c.stages[i].all.Add(c.clients)
		}
		c.left.Store(int32(stages))
		c.line.open(c)
	}
	c.opened.Store(c.line.clock.Add(1))
	if c.clients > 0 {
		for s := range stages {
			c.measure(s)
		}
	}
}

// reached counts a client that has reached a stage.
func (c *Change) reached(s Stage) {
	reached := &c.stages[s]
	n := reached.n.Add(1)
	if all := reached.all.Load(); n == 1 || n == half(all) || n >= all {
		c.measure(s)
	}
}

// gone removes a client that will not reach a stage.
func (c *Change) gone(s Stage) {
	reached := &c.stages[s]
	if all := reached.all.Add(-1); reached.n.Load() >= half(all) {
		c.measure(s)
	}
}

func half(n int64) int64 { return (n + 1) / 2 }

// measure records the time of each Client that has just reached a stage. Before Open, the number of clients is not
// known yet.
func (c *Change) measure(s Stage) {
	if c.opened.Load() == 0 || c.closed.Load() {
		return
	}
	now := time.Now()
	reached := &c.stages[s]
	reached.mu.Lock()
	n, all, next := reached.n.Load(), reached.all.Load(), reached.next
	for reached.next < milestones && !c.closed.Load() {
		if n < max(1, [milestones]int64{1, half(all), all}[reached.next]) {
			break
		}
		if c.line.reached(c, s, reached.next, now); reached.next == Last {
			reached.last.Store(now.UnixNano())
		}
		reached.next++
	}
	over := reached.next < milestones && all <= 0 // all are gone
	if over {
		reached.next = milestones
	}
	complete := reached.next == milestones && next < milestones
	reached.mu.Unlock()
	if complete && c.left.Add(-1) == 0 {
		c.line.complete(c)
	}
}

// missing returns how many clients have not reached a stage, and still can.
func (c *Change) missing(s Stage) int64 {
	return max(0, c.stages[s].all.Load()-c.stages[s].n.Load())
}
