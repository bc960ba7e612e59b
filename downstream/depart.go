package downstream

import (
	"context"
	"math/rand/v2"
	"time"
)

// How the relay sends clients away that have exceeded no limit: because their listener drains, or their connection is
// old. An xDS stream never ends by itself. So the relay sends the client GOAWAY, which has it open its next stream on
// another connection, and then ends its streams with UNAVAILABLE. gRFC A57: a stream that ends after a response is no
// error, and gRPC opens the next one without backoff. Envoy reconnects after its shortest backoff.

// partingTime is how long a client that was sent away may take to close its connection: it reads the rest of a
// response, and the status of its streams. Then the relay closes the connection.
const partingTime = 3 * time.Second

// joinConn registers end, which is called when the client of a call is sent away, until leave. If the client has been
// sent away already, it returns the status with which the call ends.
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

// sendAway sends the client away. It may block on a client that does not read, until the connection is closed.
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

// part closes the connection of a client whose parting time is over. A REST request that is still being read or
// answered gets more time; it has timeouts of its own.
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

// age schedules that the client is sent away when its connection is old. Ages differ by up to half of the maximum, so
// that clients that connected at once do not leave at once.
func (c *limitedConn) age(most time.Duration) {
	if most > 0 {
		c.aged = time.AfterFunc(jittered(most), func() { c.sendAway(Aged) })
	}
}

// jittered returns a time between three and five quarters of d.
func jittered(d time.Duration) time.Duration {
	return d - d/4 + time.Duration(rand.Float64()*float64(d)/2)
}

// departEvery is the longest time between two clients that are sent away: a listener with few connections drains sooner
// than it may.
const departEvery = time.Second

// Drain closes the socket and sends the clients of all connections away, spread over the given time. It returns when
// the connections are closed: at most 4 seconds after that time. If ctx ends earlier, the remaining connections stay
// open.
func (l *limitedListener) Drain(ctx context.Context, within time.Duration) {
	_ = l.Listener.Close() // it may be closed already
	conns, gone := l.conns.drain()
	// In goroutines of their own, because one may wait for a client that does not read.
	if !oneByOne(ctx, conns, within, gone, func(c *limitedConn) { go c.sendAway(Drained) }) {
		return
	}
	timer := time.NewTimer(partingTime + time.Second)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C: // they are sent the rest of a REST answer
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

// oneByOne calls do for each connection, spread over a time. It returns false if ctx ends first, or all connections
// have ended.
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
