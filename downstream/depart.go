package downstream

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
)

// How the relay sends clients away that have exceeded nothing: because their listener drains, or
// their connection is old. A stream of xDS never ends by itself. So the client gets GOAWAY, which
// has it open its next stream on another connection, and then its streams end with UNAVAILABLE.
// gRFC A57: a stream that ends after a response is no error, and gRPC opens the next one without
// backoff. Envoy does so after its shortest backoff.

// Departure is why the relay sends the client of a connection away.
type Departure uint8

const (
	// Drained says that the listener of the connection drains.
	Drained Departure = iota
	// Aged says that the connection has reached its maximum age.
	Aged
	numDepartures
)

var departures = [numDepartures]struct {
	name string
	why  error // the status with which streams end
}{
	Drained: {"drain", status.Error(codes.Unavailable, "the relay drains this listener (connect again)")},
	Aged:    {"age", status.Error(codes.Unavailable, "the connection has reached its maximum age (connect again)")},
}

// String returns the departure's name in metrics.
func (d Departure) String() string { return departures[d].name }

// departureCounts are totals.
type departureCounts [numDepartures]atomic.Uint64

func (c *departureCounts) read() map[string]uint64 {
	counts := make(map[string]uint64, numDepartures)
	for d := range numDepartures {
		counts[d.String()] = c[d].Load()
	}
	return counts
}

// partingTime is how long a client that was sent away may take to close its connection: it reads
// the rest of a response, and how its streams have ended. Then the relay closes the connection.
const partingTime = 3 * time.Second

// connCalls are the open calls of a connection: streams, and requests that wait for their answer.
type connCalls struct {
	mu    sync.Mutex
	first *connCall
	left  time.Time // when the last one left
	// leaving is why the connection takes no calls any more, nil while it does.
	leaving error
}

// connCall is one of them.
type connCall struct {
	prev, next *connCall
	end        func(why error) // does not block
}

// join adds a call until leave, unless the client was sent away.
func (c *connCalls) join(call *connCall) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving != nil {
		return c.leaving
	}
	if call.next = c.first; call.next != nil {
		call.next.prev = call
	}
	c.first = call
	return nil
}

func (c *connCalls) leave(call *connCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call.prev != nil {
		call.prev.next = call.next
	} else {
		c.first = call.next
	}
	if call.next != nil {
		call.next.prev = call.prev
	}
	if c.first == nil {
		c.left = time.Now()
	}
}

// close has the connection take no further calls, and returns what ends those that are open. Only
// the first close does, others say false.
func (c *connCalls) close(why error) (ends []func(error), first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving != nil {
		return nil, false
	}
	c.leaving = why
	for call := c.first; call != nil; call = call.next {
		ends = append(ends, call.end)
	}
	return ends, true
}

func (c *connCalls) isLeaving() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaving != nil
}

// idleFor returns for how long there has been no call.
func (c *connCalls) idleFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first != nil {
		return 0
	}
	return time.Since(c.left)
}

// connOf returns the connection of the call with this context, nil if it is none of a listener's.
func connOf(ctx context.Context) *limitedConn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	if a, ok := p.Addr.(*limitedAddr); ok {
		return a.conn
	}
	return nil
}

// joinConn has end called when the client of a call is sent away, until leave. The error is the
// status with which the call ends because that has happened.
func joinConn(ctx context.Context, end func(why error)) (leave func(), err error) {
	conn := connOf(ctx)
	if conn == nil {
		return func() {}, nil
	}
	call := &connCall{end: end}
	if err := conn.calls.join(call); err != nil {
		return nil, err
	}
	return func() { conn.calls.leave(call) }, nil
}

// sendAway sends the client away. It may wait for a client that does not read, until the
// connection is closed.
func (c *limitedConn) sendAway(d Departure) {
	select {
	case <-c.closed: // its client has gone by itself
		return
	default:
	}
	ends, first := c.calls.close(departures[d].why)
	if !first {
		return
	}
	c.listener.server.stats.departures[d].Add(1)
	time.AfterFunc(partingTime, c.part)
	g := c.goAway.Load()
	if g != nil {
		g.want()
	}
	for _, end := range ends {
		end(departures[d].why)
	}
	if g != nil {
		g.flush()
	}
}

// part closes the connection of a client that has had its time to go. A request over REST that is still
// read or answered has timeouts of its own.
func (c *limitedConn) part() {
	select {
	case <-c.closed:
	default:
		if c.goAway.Load() != nil || c.calls.idleFor() >= partingTime {
			_ = c.Close()
			return
		}
		time.AfterFunc(partingTime, c.part)
	}
}

// age has the client sent away once its connection is old. The jitter is as wide as half of the
// age, so that clients that came at once do not go at once.
func (c *limitedConn) age(most time.Duration) {
	if most > 0 {
		c.aged = time.AfterFunc(jittered(most), func() { c.sendAway(Aged) })
	}
}

// jittered returns a time that is a quarter less than d to a quarter more.
func jittered(d time.Duration) time.Duration {
	return d - d/4 + time.Duration(rand.Float64()*float64(d)/2)
}

// openConns are the connections of a listener.
type openConns struct {
	mu   sync.Mutex
	open map[*limitedConn]struct{}
	room cache.Room // of open
	// gone is nil until the listener drains, and closed when it has no connection any more.
	gone chan struct{}
}

// add adds a connection, unless the listener drains.
func (o *openConns) add(c *limitedConn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone != nil {
		return false
	}
	if o.open == nil {
		o.open = map[*limitedConn]struct{}{}
	}
	o.open[c] = struct{}{}
	return true
}

func (o *openConns) remove(c *limitedConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, there := o.open[c]; !there {
		return
	}
	o.open = cache.Without(o.open, &o.room, c)
	if o.gone != nil && len(o.open) == 0 {
		close(o.gone)
	}
}

// drain takes no further connections. It returns those that there are, in no order, and what is
// closed when they have gone. Only the first drain does, others return nil.
func (o *openConns) drain() (conns []*limitedConn, gone <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone != nil {
		return nil, o.gone
	}
	o.gone = make(chan struct{})
	for c := range o.open {
		conns = append(conns, c)
	}
	if len(conns) == 0 {
		close(o.gone)
	}
	return conns, o.gone
}

// all returns the connections that there are, in no order.
func (o *openConns) all() []*limitedConn {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.open))
}

// departEvery is the longest time from one client that is sent away to the next: a listener with
// few connections drains sooner than it may.
const departEvery = time.Second

// Drain closes the socket and sends the clients of all connections away, each at a moment of its
// own within the given time. It returns when the connections are closed: after that time and 4
// seconds at most. If ctx ends earlier, the remaining connections stay as they are.
func (l *limitedListener) Drain(ctx context.Context, within time.Duration) {
	_ = l.Listener.Close() // it may be closed by now
	conns, gone := l.conns.drain()
	// In goroutines of their own, because one may wait for a client that does not read.
	if !oneByOne(ctx, conns, within, gone, func(c *limitedConn) { go c.sendAway(Drained) }) {
		return
	}
	timer := time.NewTimer(partingTime + time.Second)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C: // they are sent the rest of an answer over REST
	case <-ctx.Done():
	}
}

// Retire implements Listener. Over REST it sends nothing.
func (l *limitedListener) Retire(ctx context.Context, within time.Duration) {
	oneByOne(ctx, l.conns.all(), within, nil, func(c *limitedConn) {
		if g := c.goAway.Load(); g != nil {
			g.want()
			go g.flush()
		}
	})
}

// oneByOne calls do for each connection, at a moment of its own within a time. It returns false if ctx ends before
// that, or they have gone.
func oneByOne(ctx context.Context, conns []*limitedConn, within time.Duration, gone <-chan struct{}, do func(*limitedConn)) bool {
	rand.Shuffle(len(conns), func(i, j int) { conns[i], conns[j] = conns[j], conns[i] })
	within = min(within, time.Duration(len(conns))*departEvery)
	began := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i, c := range conns {
		at := time.Duration((float64(i) + rand.Float64()) / float64(len(conns)) * float64(within))
		timer.Reset(at - time.Since(began))
		select {
		case <-timer.C:
			do(c)
		case <-gone:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}
