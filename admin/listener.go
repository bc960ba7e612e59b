package admin

import (
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
)

// MaxConns limits the connections of the operator's listener. File descriptors are for
// clients and control planes.
const MaxConns = 100

// Limit returns a listener with at most [MaxConns] connections. For each further connection it closes
// the oldest one without a request or, if all have one, the new one. The connections are for
// [Server.HTTP].
func Limit(socket net.Listener) net.Listener {
	return &limitedListener{Listener: socket, most: MaxConns}
}

type limitedListener struct {
	net.Listener
	most int

	mu    sync.Mutex
	conns []*limitedConn // the oldest first
}

// limitedConn is a connection that counts.
type limitedConn struct {
	net.Conn
	listener *limitedListener
	busy     bool // it has a request; listener.mu guards it
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		socket, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &limitedConn{Conn: socket, listener: l}
		excess := l.add(c)
		if excess != nil {
			_ = excess.Close() // it may be closed by now
		}
		if excess != c {
			return c, nil
		}
	}
}

// add counts a connection, and returns the one that the caller has to close, if any.
func (l *limitedListener) add(c *limitedConn) (excess *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	if len(l.conns) <= l.most {
		return nil
	}
	at := slices.IndexFunc(l.conns, func(c *limitedConn) bool { return !c.busy })
	return l.conns[at] // the newest has no request
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	l := c.listener
	l.mu.Lock()
	if at := slices.Index(l.conns, c); at >= 0 {
		l.conns = slices.Delete(l.conns, at, at+1)
	}
	l.mu.Unlock()
	return c.Conn.Close()
}

// noteState records whether a connection has a request.
func noteState(conn net.Conn, state http.ConnState) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c, ok := conn.(*limitedConn)
	if !ok {
		return
	}
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.busy = state == http.StateActive
}
