package downstream

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/tap"

	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/loglines"
)

// What one connection may cost before there is a request on it: that it is there, that it comes
// and goes, and streams that come and go.

// Listen holds the connections that come through a socket to the limits of a listener.
// One that is too many is closed at once. One whose client opens streams too fast is read
// more slowly: it is what gRPC has made of them by then that costs, and a client that
// resets each stream at once is under every limit on those that are open.
func (s *Server) Listen(socket net.Listener, o ListenerOptions) Listener {
	l := s.listen(socket, o)
	l.pace = streamPace{limitStreamsPerSecond, o.Limits.StreamsPerSecond, streamBurst * o.Limits.StreamsPerSecond}
	return l
}

func (s *Server) listen(socket net.Listener, o ListenerOptions) *limitedListener {
	l := &limitedListener{
		Listener: socket, server: s, limits: o.Limits, userTimeout: o.UserTimeout, maxAge: o.MaxConnectionAge, door: o.door(),
		churning: rate.Sometimes{Interval: turnedAwayEvery},
	}
	l.SetConnections(o.Limits.Connections)
	return l
}

// SetConnections implements Listener.
func (l *limitedListener) SetConnections(most int) { l.most.Store(int64(most)) }

// streamPace is how fast the streams of one connection are read.
type streamPace struct {
	limit limit
	// perSecond is for the long run, burst for once. Without a perSecond there is no limit.
	perSecond, burst int
}

// Listener is a socket for clients whose connections can be drained.
type Listener interface {
	net.Listener
	// Drain closes the socket and sends the clients of all connections away, each at a moment of
	// its own within the given time, and returns when they have gone.
	Drain(ctx context.Context, within time.Duration)
	// Retire has the clients of all connections open their next streams on another one, each at a moment of its own
	// within the given time. Their streams go on. It returns when all have been sent GOAWAY.
	Retire(ctx context.Context, within time.Duration)
	// SetConnections changes how many connections there may be. It holds for the next one.
	SetConnections(most int)
}

type limitedListener struct {
	net.Listener
	server *Server
	limits Limits
	pace   streamPace
	// userTimeout is how long what was sent may stay unacknowledged.
	userTimeout time.Duration
	// maxAge is how old a connection may become, 0 for no limit.
	maxAge time.Duration
	// most is how many connections there may be: Limits.Connections.
	most       atomic.Int64
	door       *Door
	conns      openConns
	refused    loglines.Shared // lines about connections that were closed
	pacing     loglines.Shared // about those that are read slowly
	churning   rate.Sometimes  // about those that come too fast
	flooded    loglines.Shared // and about those with too many control frames
	handshakes loglines.Shared // and about those that could not be encrypted
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if e := over(limitConnections, int(l.door.conns.Add(1)), int(l.most.Load()), "%d connections to this listener"); e != nil {
			l.door.conns.Add(-1)
			l.server.stats.limits[e.limit].Add(1)
			if log, ok := l.refused.Next(l.log(c)); ok {
				logExcess(log, e)
			}
			_ = c.Close() // nothing was sent
			continue
		}
		conn := newLimitedConn(l, c)
		conn.age(l.maxAge)
		if !l.conns.add(conn) { // accepted before the socket was closed
			_ = conn.Close()
			continue
		}
		l.delay(conn)
		return conn, nil
	}
}

// delay has a new connection wait if too many of its address have ended soon.
func (l *limitedListener) delay(c *limitedConn) {
	most := l.limits.ConnectionsPerSecond
	if most == 0 {
		return
	}
	delay := l.door.churn.delay(c.group, most, c.began)
	if delay == 0 {
		return
	}
	c.readAfter(c.began.Add(delay), limitConnectionsPerSecond)
	l.churning.Do(func() {
		l.log(c).Warn("client opens and closes connections faster than they are read", "limit", limitConnectionsPerSecond.String(), "max", most)
	})
}

func (l *limitedListener) log(c net.Conn) *slog.Logger {
	return l.server.options.Log.With("client", c.RemoteAddr().String())
}

// limitedConn is a connection that is counted, and read no faster than its client may
// open streams.
type limitedConn struct {
	net.Conn
	listener *limitedListener
	addr     limitedAddr
	group    netip.Prefix // of addresses
	began    time.Time
	close    sync.Once
	closed   chan struct{}

	// notBefore is when the next bytes are read, in nanoseconds since 1970.
	notBefore atomic.Int64
	// waitsFor is the limit for which it is not.
	waitsFor atomic.Uint32
	// streams is nil before the first. It is of the goroutine that reads.
	streams *rate.Limiter
	paced   bool // it is logged

	ready readyReader
	calls connCalls
	aged  *time.Timer // nil without a maximum age
	// goAway is nil before the handshake, and as in meteredConn.
	goAway atomic.Pointer[goAway]
}

// handshakeFailed logs why a client has no connection.
func (c *limitedConn) handshakeFailed(err error) {
	if log, ok := c.listener.handshakes.Next(c.listener.log(c)); ok {
		log.Warn("client's TLS handshake failed", "reason", err)
	}
}

func newLimitedConn(l *limitedListener, c net.Conn) *limitedConn {
	limited := &limitedConn{Conn: c, listener: l, group: addressGroup(c.RemoteAddr()), began: time.Now(), closed: make(chan struct{})}
	limited.addr = limitedAddr{Addr: c.RemoteAddr(), conn: limited}
	if local, ok := c.(*net.UnixConn); ok {
		limited.addr.Addr = identity.UnixAddrOf(local)
	}
	limited.ready.init(c)
	setUserTimeout(c, l.userTimeout)
	return limited
}

// limitedAddr is a connection's remote address, by which the connection of a stream is
// found: gRPC gives no other way.
type limitedAddr struct {
	net.Addr
	conn *limitedConn
}

// Unwrap returns the address alone, for those who look at what it is.
func (a *limitedAddr) Unwrap() net.Addr { return a.Addr }

// RemoteAddr implements net.Conn.
func (c *limitedConn) RemoteAddr() net.Addr { return &c.addr }

// Read implements net.Conn.
func (c *limitedConn) Read(b []byte) (int, error) {
	c.wait()
	return c.Conn.Read(b)
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.close.Do(func() {
		close(c.closed)
		c.listener.door.conns.Add(-1)
		c.listener.conns.remove(c)
		if c.aged != nil {
			c.aged.Stop()
		}
		if most, now := c.listener.limits.ConnectionsPerSecond, time.Now(); most > 0 && now.Sub(c.began) < shortLived {
			c.listener.door.churn.ended(c.group, most, now)
		}
	})
	return c.Conn.Close()
}

// readAfter has the next bytes not read before then.
func (c *limitedConn) readAfter(at time.Time, l limit) {
	c.waitsFor.Store(uint32(l))
	c.notBefore.Store(max(at.UnixNano(), c.notBefore.Load()))
}

// wait waits until bytes may be read.
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

// streamBurst is how many seconds' worth of streams may be opened at once: a relay behind
// this one, or a proxy, comes back with all that it has.
const streamBurst = 4

// opened notes that the client has opened a stream.
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

// tapStream is called by gRPC for each new stream, by the goroutine that reads from the
// connection.
func tapStream(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if conn := connOf(ctx); conn != nil {
		conn.opened()
	}
	return ctx, nil
}
