package downstream

import (
	"net"
	"time"

	"golang.org/x/time/rate"

	"github.com/xds-relay/xds-relay/identity"
)

// Listen applies the limits of a listener to the connections that a socket accepts. A connection over the limit is
// closed at once. A connection whose client opens streams too fast is read more slowly: a stream costs something as
// soon as gRPC has read it, and a client that resets each stream at once stays below every limit on open streams.
func (s *Server) Listen(socket net.Listener, o ListenerOptions) Listener {
	l := s.listen(socket, o)
	l.pace = streamPace{limitStreamsPerSecond, o.Limits.StreamsPerSecond, streamBurst * o.Limits.StreamsPerSecond}
	return l
}

func (s *Server) listen(socket net.Listener, o ListenerOptions) *limitedListener {
	l := &limitedListener{
		Listener: socket, server: s, limits: o.Limits, userTimeout: o.UserTimeout, maxAge: o.MaxConnectionAge, proxies: o.Proxies, door: o.door(),
		churning: rate.Sometimes{Interval: turnedAwayEvery},
	}
	l.SetConnections(o.Limits.Connections)
	return l
}

func newLimitedConn(l *limitedListener, c net.Conn) *limitedConn {
	limited := &limitedConn{Conn: c, listener: l, began: time.Now(), closed: make(chan struct{})}
	limited.addr.conn = limited
	limited.peer = origin{c.RemoteAddr(), addressGroup(c.RemoteAddr())}
	if local, ok := c.(*net.UnixConn); ok {
		limited.peer.addr = identity.UnixAddrOf(local)
	}
	limited.origin.Store(&limited.peer)
	limited.proxied = l.proxies != nil && l.proxies(c.RemoteAddr())
	limited.ready.init(c)
	setUserTimeout(c, l.userTimeout)
	return limited
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
		if !conn.proxied { // with a header, the client is not known yet
			l.delay(conn)
		}
		return conn, nil
	}
}

// delay has a new connection wait if too many short-lived ones of its address have ended.
func (l *limitedListener) delay(c *limitedConn) {
	most := l.limits.ConnectionsPerSecond
	if most == 0 {
		return
	}
	delay := l.door.churn.delay(c.group(), most, c.began)
	if delay == 0 {
		return
	}
	c.readAfter(c.began.Add(delay), limitConnectionsPerSecond)
	l.churning.Do(func() {
		l.log(c).Warn("client opens and closes connections faster than they are read", "limit", limitConnectionsPerSecond.String(), "max", most)
	})
}

// door returns the door of a listener.
func (o *ListenerOptions) door() *Door {
	if o.Door == nil {
		return NewDoor(*o)
	}
	return o.Door
}
