package downstream

import (
	"context"
	"math/rand/v2"
	"time"
)

// How the relay sends clients away that have exceeded nothing: because their listener drains, or
// their connection is old. A stream of xDS never ends by itself. So the client gets GOAWAY, which
// has it open its next stream on another connection, and then its streams end with UNAVAILABLE.
// gRFC A57: a stream that ends after a response is no error, and gRPC opens the next one without
// backoff. Envoy does so after its shortest backoff.

// partingTime is how long a client that was sent away may take to close its connection: it reads
// the rest of a response, and how its streams have ended. Then the relay closes the connection.
const partingTime = 3 * time.Second

// joinConn has end called when the client of a call is sent away, until leave. The error is the
// status with which the call ends because that has happened.
func joinConn(ctx context.Context, end func(why error)) (leave func(), err error) {
	conn := connOf(ctx)
	if conn == nil {
		return func() {}, nil
	}
	call := &connCall{ender: enderFunc(end)}
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
	calls, first := c.calls.close(departures[d].why)
	if !first {
		return
	}
	c.listener.server.stats.departures[d].Add(1)
	time.AfterFunc(partingTime, c.part)
	g := c.goAway.Load()
	if g != nil {
		g.want()
	}
	for _, call := range calls {
		call.end(departures[d].why)
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
