package admin

// The requests with which an operator changes something, or sends a document.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// maxForm limits the body of a POST, in bytes.
const maxForm = 64 << 10

// Page adds a page that h writes. Like [Server.JSON] it must not be called once the server
// serves.
func (s *Server) Page(path, about string, h http.Handler) { s.handle(path, about, h) }

// Action adds an action of the operator: a POST to path, which is a pattern of http.ServeMux. The guard
// refuses requests of other sites, as for all paths. Like [Server.JSON] it must not be called once the
// server serves.
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

// Upload adds an action on a document: a POST to path, whose body is the document. most bounds its size in
// bytes. The server calls h with the document. Upload must not be called once the server serves.
func (s *Server) Upload(path string, most int64, h func(w http.ResponseWriter, r *http.Request, document []byte)) {
	s.mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		document, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			http.Error(w, fmt.Sprintf("the document has more than %d bytes", most), http.StatusRequestEntityTooLarge)
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		default:
			h(w, r, document)
		}
	})
}

type socketKey struct{}

// withSocket stores the socket of a connection in the context of its requests.
func withSocket(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if limited, ok := conn.(*limitedConn); ok {
		conn = limited.Conn
	}
	return context.WithValue(ctx, socketKey{}, conn)
}

// SocketOf returns the socket over which a request came, or nil if it is not known.
func SocketOf(r *http.Request) net.Conn {
	conn, _ := r.Context().Value(socketKey{}).(net.Conn)
	return conn
}
