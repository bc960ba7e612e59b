package downstream

import (
	"context"
	"net"
	"sync"

	"golang.org/x/time/rate"
)

// The identity of the clients of a REST listener. Handlers of net/http see no connections, and the requests' TLS state
// is not set, because the relay decrypts.

// restConn is what the requests of one connection share.
type restConn struct {
	conn net.Conn
	pace *rate.Limiter // nil for no limit
	join sync.Once     // has the requests that arrive counted
}

// restConnKey is the key of a request's restConn in its context.
type restConnKey struct{}

func withConn(ctx context.Context, c net.Conn, l Limits) context.Context {
	return context.WithValue(ctx, restConnKey{}, &restConn{conn: c, pace: newPace(l)})
}

// remoteAddr is a client's address, where a net.Addr is needed.
type remoteAddr string

// Network implements net.Addr.
func (remoteAddr) Network() string { return "tcp" }

// String implements net.Addr.
func (a remoteAddr) String() string { return string(a) }
