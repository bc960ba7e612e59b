package downstream

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Bounds on what one connection costs before it carries a request: the open connection, short-lived connections, and
// short-lived streams.

// Listener is a socket for clients whose connections can be drained.
type Listener interface {
	net.Listener
	// Drain closes the socket and sends the clients of all connections away, spread over the given time. It returns
	// when they have gone.
	Drain(ctx context.Context, within time.Duration)
	// Retire has the clients of all connections open their next streams on another connection, spread over the given
	// time. Their open streams continue. It returns when all clients have been sent GOAWAY.
	Retire(ctx context.Context, within time.Duration)
	// SetConnections changes how many connections are allowed. It applies from the next connection on.
	SetConnections(most int)
}

type limitedListener struct {
	net.Listener
	server *Server
	limits Limits
	pace   streamPace
	rest   bool // it is a REST listener
	// userTimeout is how long sent data may stay unacknowledged.
	userTimeout time.Duration
	// maxAge is how old a connection may become, 0 for no limit.
	maxAge time.Duration
	// proxies reports whether connections from an address begin with a header of the PROXY protocol; nil if none do.
	proxies func(net.Addr) bool
	// most is how many connections are allowed: Limits.Connections.
	most     atomic.Int64
	door     *Door
	conns    openConns
	refused  loglines.Shared // log lines about connections that were closed
	pacing   loglines.Shared // log lines about connections that are read slowly
	churning rate.Sometimes  // log lines about connections that come too fast
	flooded  loglines.Shared // log lines about connections with too many control frames
}

// SetConnections implements Listener.
func (l *limitedListener) SetConnections(most int) { l.most.Store(int64(most)) }

// streamPace is how fast the streams of one connection are read.
type streamPace struct {
	limit limit
	// perSecond is the sustained rate, burst how many at once. A perSecond of zero means no limit.
	perSecond, burst int
}

// connCalls are the open calls of a connection: streams, and requests that wait for their answer.
type connCalls struct {
	mu    sync.Mutex
	first *connCall
	left  time.Time // when the last one left
	// leaving is why the connection accepts no more calls, nil while it does.
	leaving error
}

// connCall is an open call.
type connCall struct {
	prev, next *connCall
	ender
}

// ender ends a call.
type ender interface {
	end(why error) // does not block
}

// enderFunc is a function that ends a call.
type enderFunc func(why error)

func (f enderFunc) end(why error) { f(why) }

// join adds a call until leave. It fails if the client was sent away.
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

// close stops the connection from accepting calls, and returns the enders of the open ones. first is true for the first
// close only.
func (c *connCalls) close(why error) (calls []ender, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving != nil {
		return nil, false
	}
	c.leaving = why
	for call := c.first; call != nil; call = call.next {
		calls = append(calls, call.ender)
	}
	return calls, true
}

// endAll ends the open calls.
func (c *connCalls) endAll(why error) {
	var calls []ender
	c.mu.Lock()
	for call := c.first; call != nil; call = call.next {
		calls = append(calls, call.ender)
	}
	c.mu.Unlock()
	for _, call := range calls {
		call.end(why)
	}
}

func (c *connCalls) isLeaving() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaving != nil
}

// idleFor returns how long the connection has had no call.
func (c *connCalls) idleFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first != nil {
		return 0
	}
	return time.Since(c.left)
}

// connOf returns the connection of the call with this context, nil if it did not come through a listener.
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

// openConns are the connections of a listener.
type openConns struct {
	mu   sync.Mutex
	open map[*limitedConn]struct{}
	room cache.Room // of open
	// drained is nil until the listener drains. It is closed when the last connection has ended.
	drained chan struct{}
}

// add adds a connection, unless the listener drains.
func (o *openConns) add(c *limitedConn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.drained != nil {
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
	if o.drained != nil && len(o.open) == 0 {
		close(o.drained)
	}
}

// drain stops accepting connections. It returns the open ones, in no order, and a channel that is closed when they have
// ended. Only the first drain does; others return nil.
func (o *openConns) drain() (conns []*limitedConn, gone <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.drained != nil {
		return nil, o.drained
	}
	o.drained = make(chan struct{})
	for c := range o.open {
		conns = append(conns, c)
	}
	if len(conns) == 0 {
		close(o.drained)
	}
	return conns, o.drained
}

// all returns the open connections, in no order.
func (o *openConns) all() []*limitedConn {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.open))
}

func (l *limitedListener) log(c net.Conn) *slog.Logger {
	return l.server.options.Log.With("client", c.RemoteAddr().String())
}

// limitedConn is a connection that is counted. The relay reads it no faster than its client may open streams.
type limitedConn struct {
	net.Conn
	listener *limitedListener
	addr     limitedAddr
	origin   atomic.Pointer[origin]
	peer     origin // the other end of the connection, which is the client or a balancer
	began    time.Time
	close    sync.Once
	closed   chan struct{}

	// notBefore is the earliest time of the next read, in nanoseconds since 1970.
	notBefore atomic.Int64
	// waitsFor is the limit that causes notBefore.
	waitsFor atomic.Uint32
	// streams is nil before the first stream. Only the goroutine that reads uses it.
	streams *rate.Limiter
	paced   bool // the log line about a client that is too fast was written, or left out
	// heard: the client has sent something. Only the goroutine that does the TLS handshake uses it, and without TLS no
	// one.
	heard bool
	// proxied: the connection begins with a header of the PROXY protocol, and that has not been read. Only the goroutine
	// that reads uses it.
	proxied bool

	ready readyReader
	calls connCalls
	aged  *time.Timer // nil without a maximum age
	// goAway is nil before the handshake; see meteredConn.
	goAway atomic.Pointer[goAway]
	// arriving is nil before the handshake.
	arriving atomic.Pointer[arriving]
}

// counts has the connection's requests counted until it closes.
func (c *limitedConn) counts(a *arriving) {
	c.arriving.Store(a)
	select {
	case <-c.closed: // during the handshake
		a.leave()
	default:
	}
}

// limitedAddr is the address of a connection's client. It serves to find the connection of a stream: gRPC offers no other
// way.
type limitedAddr struct{ conn *limitedConn }

// Unwrap returns the plain address, for type checks.
func (a *limitedAddr) Unwrap() net.Addr { return a.conn.origin.Load().addr }

// Network implements net.Addr.
func (a *limitedAddr) Network() string { return a.Unwrap().Network() }

// String implements net.Addr.
func (a *limitedAddr) String() string { return a.Unwrap().String() }

// group returns the client's address, for what is counted by it: see addressGroup.
func (c *limitedConn) group() netip.Prefix { return c.origin.Load().group }

// RemoteAddr implements net.Conn.
func (c *limitedConn) RemoteAddr() net.Addr { return &c.addr }

// Read implements net.Conn.
func (c *limitedConn) Read(b []byte) (int, error) {
	if err := c.awaitProxyHeader(); err != nil {
		return 0, err
	}
	c.wait()
	n, err := c.Conn.Read(b)
	c.heard = c.heard || n > 0
	return n, err
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.close.Do(func() {
		close(c.closed)
		c.arriving.Load().leave()
		c.listener.door.conns.Add(-1)
		c.listener.conns.remove(c)
		if c.aged != nil {
			c.aged.Stop()
		}
		if most, now := c.listener.limits.ConnectionsPerSecond, time.Now(); most > 0 && now.Sub(c.began) < shortLived {
			c.listener.door.churn.ended(c.group(), most, now)
		}
	})
	return c.Conn.Close()
}

// readAfter delays the next read until at, because of a limit.
func (c *limitedConn) readAfter(at time.Time, l limit) {
	c.waitsFor.Store(uint32(l))
	c.notBefore.Store(max(at.UnixNano(), c.notBefore.Load()))
}

// wait waits until the next read is due.
func (c *limitedConn) wait() {
	at := c.notBefore.Load()
	if at == 0 {
		return
	}
	c.notBefore.Store(0)
	delay := time.Until(time.Unix(0, at))
	if delay <= 0 {
		return
	}
	c.listener.server.stats.limits[c.waitsFor.Load()].Add(1)
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.closed:
	}
}

// streamBurst is how many seconds' worth of streams may be opened at once: a relay behind this one, or a proxy,
// reconnects with all of its streams.
const streamBurst = 4

// opened records that the client has opened a stream.
func (c *limitedConn) opened() {
	pace := &c.listener.pace
	if pace.perSecond == 0 {
		return
	}
	if c.streams == nil {
		c.streams = rate.NewLimiter(rate.Limit(pace.perSecond), max(pace.burst, 1))
	}
	now := time.Now()
	delay := c.streams.ReserveN(now, 1).DelayFrom(now)
	if delay == 0 {
		return
	}
	c.readAfter(now.Add(delay), pace.limit)
	if c.paced {
		return
	}
	c.paced = true
	if log, ok := c.listener.pacing.Next(c.listener.log(c)); ok {
		if pace.limit == limitRequests {
			log.Warn(fasterThanRead, "limit", limitRequests.String(), "max", pace.perSecond)
		} else {
			log.Warn("client opens streams faster than they are read", "limit", pace.limit.String(), "max", pace.perSecond)
		}
	}
}

// tapStream: gRPC calls it for each new stream, on the goroutine that reads from the connection.
func tapStream(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if conn := connOf(ctx); conn != nil {
		conn.opened()
	}
	return ctx, nil
}
