package admin

// What the operator does, besides looking.

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
)

// maxForm limits the body of a POST, in bytes.
const maxForm = 64 << 10

// Page adds a page that h writes. Like [Server.JSON] it must not be called once the server
// serves.
func (s *Server) Page(path, about string, h http.Handler) { s.handle(path, about, h) }

// Action adds something that the operator can do, with a POST to the path, whose pattern is that
// of http.ServeMux. The guard refuses it for other sites, as it does all requests. Like
// [Server.JSON] it must not be called once the server serves.
func (s *Server) Action(path string, h http.Handler) {
	s.mux.Handle("POST "+path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h.ServeHTTP(w, r)
	}))
}

type socketKey struct{}

// withSocket keeps the socket of a connection for its requests.
func withSocket(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if limited, ok := conn.(*limitedConn); ok {
		conn = limited.Conn
	}
	return context.WithValue(ctx, socketKey{}, conn)
}

// SocketOf returns the socket over which a request came, nil if that is not known.
func SocketOf(r *http.Request) net.Conn {
	conn, _ := r.Context().Value(socketKey{}).(net.Conn)
	return conn
}
