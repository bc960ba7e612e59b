package downstream

import (
	"context"
	"errors"
	"net"
	"net/http"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/identity"
)

// Who the clients of a REST listener are. Handlers of net/http see no connections, and the
// requests' TLS state is not set, because it is the relay that decrypts.

// restConn is what the requests of one connection have in common.
type restConn struct {
	conn net.Conn
	pace *rate.Limiter // nil for no limit
}

// restConnKey is the key of a request's restConn in its context.
type restConnKey struct{}

func withConn(ctx context.Context, c net.Conn, l Limits) context.Context {
	return context.WithValue(ctx, restConnKey{}, &restConn{conn: c, pace: newPace(l)})
}

// peerOf returns a request's client as gRPC would.
func (h *restHandler) peerOf(r *http.Request) *peer.Peer {
	c, ok := r.Context().Value(restConnKey{}).(*restConn)
	if !ok { // the server is not that of HTTPServer
		return &peer.Peer{Addr: remoteAddr(r.RemoteAddr)}
	}
	p := &peer.Peer{Addr: c.conn.RemoteAddr(), LocalAddr: c.conn.LocalAddr()}
	metered, ok := c.conn.(*meteredConn)
	if ok && metered.tls != nil && h.gate.identify != nil {
		p.AuthInfo = credentials.TLSInfo{State: metered.tls.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	}
	return p
}

// remoteAddr is a client's address, for those who expect a net.Addr.
type remoteAddr string

// Network implements net.Addr.
func (remoteAddr) Network() string { return "tcp" }

// String implements net.Addr.
func (a remoteAddr) String() string { return string(a) }

// refuseClient answers a client that is refused for who it is.
func refuseClient(w http.ResponseWriter, err error) {
	refused := &identity.RefusedError{}
	if errors.As(err, &refused) {
		switch refused.Reason {
		case identity.NoToken: // RFC 6750: "The WWW-Authenticate Response Header Field"
			w.Header().Set("WWW-Authenticate", "Bearer")
		case identity.InvalidToken:
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		case identity.CertificateExpired: // the next connection has another one
			w.Header().Set("Connection", "close")
		default:
		}
	}
	failWith(w, err)
}
