package downstream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

// The connections of a REST listener. net/http bounds neither the control frames of HTTP/2 nor how fast a client opens
// and resets streams. So the relay decrypts the connections itself and counts the frames. net/http sees plaintext, in
// which it recognizes HTTP/2 by the preface.

// ListenREST is Listen for the server that HTTPServer makes. tlsConfig is nil for plaintext.
func (s *Server) ListenREST(socket net.Listener, tlsConfig *tls.Config, o ListenerOptions) Listener {
	l := &restListener{limitedListener: s.listen(socket, o)}
	l.rest = true
	l.pace = streamPace{limitRequests, o.Limits.RequestsPerSecond, o.Limits.RequestBurst}
	if tlsConfig != nil {
		l.tls = tlsConfig.Clone()
		for _, protocol := range []string{http2.NextProtoTLS, "http/1.1"} {
			if !slices.Contains(l.tls.NextProtos, protocol) {
				l.tls.NextProtos = append(l.tls.NextProtos, protocol)
			}
		}
	}
	return l
}

type restListener struct {
	*limitedListener
	tls *tls.Config // nil for plaintext
}

// Accept implements net.Listener.
func (l *restListener) Accept() (net.Conn, error) {
	accepted, err := l.limitedListener.Accept()
	if err != nil {
		return nil, err
	}
	limited, ok := accepted.(*limitedConn)
	if !ok {
		return nil, errors.New("downstream: a connection without limits") // Accept makes none
	}
	metered := &meteredConn{Conn: accepted, limited: limited, paced: true, rest: true, meter: newFrameMeter(time.Now())}
	if l.tls != nil {
		metered.tls = tls.Server(limited, l.tls)
		metered.Conn = &decryptedConn{Conn: metered.tls, limited: limited}
	}
	return metered, nil
}

// closeIfLeaving makes the answer the last one on a connection whose client was sent away. With HTTP/2, net/http then
// sends GOAWAY.
func closeIfLeaving(ctx context.Context, w http.ResponseWriter) {
	if conn := connOf(ctx); conn != nil && conn.calls.isLeaving() {
		w.Header().Set("Connection", "close")
	}
}

// decryptedConn is a TLS connection that does the handshake before its first byte is read.
type decryptedConn struct {
	*tls.Conn
	limited *limitedConn
	shaken  bool // the handshake was done, or has failed
}

// Read implements net.Conn.
func (c *decryptedConn) Read(b []byte) (int, error) {
	if !c.shaken {
		c.shaken = true
		if err := c.handshake(); err != nil {
			return 0, io.EOF // the failure is logged here
		}
	}
	return c.Conn.Read(b) // the handshake's error, if there was one
}

const (
	restPatience = 10 * time.Second // for a request to arrive, once it has begun
	restWriting  = time.Minute      // for a client to read the answer
	// restWindow is how many bytes of requests a client may send over HTTP/2 that are not read, on one connection: the
	// least that net/http allows. They are not counted before.
	restWindow = 64 << 10
)

func (c *decryptedConn) handshake() error {
	// The server has set a deadline for reading only.
	if err := c.SetWriteDeadline(time.Now().Add(restPatience)); err != nil {
		return err
	}
	if err := c.Handshake(); err != nil {
		c.refuse(err)
		return err
	}
	return c.SetWriteDeadline(time.Time{})
}

// refuse logs a failed handshake, and sends a client that does not speak TLS the reason.
func (c *decryptedConn) refuse(err error) {
	c.limited.handshakeFailed(err)
	var plain tls.RecordHeaderError
	if errors.As(err, &plain) && plain.Conn != nil {
		_, _ = io.WriteString(plain.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nThis is a request without TLS, but the listener has TLS.\n") // the client may have gone
	}
}
