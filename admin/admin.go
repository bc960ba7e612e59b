// Package admin is the operator's listener: health, metrics, and pages about clients and
// control planes, and what the operator can do. It serves HTTP. Only a POST changes anything. Who may connect is decided by the socket,
// which is on loopback, a unix socket, or has TLS with client certificates; the guard refuses
// what browsers ask for on behalf of other sites.
package admin

import (
	"bufio"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/loglines"
)

// Server answers the operator's requests. Its methods may be called
// concurrently.
type Server struct {
	mux   *http.ServeMux
	pages []page
	ready atomic.Bool
	// checks have the reasons why the relay may not be ready.
	checks []func() error
}

type page struct{ path, about string }

// New makes a server with /healthz, /readyz and, from metrics, /metrics.
func New(metrics *Metrics) *Server {
	s := &Server{mux: http.NewServeMux()}
	s.handle("/healthz", "200 while the process answers", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	}))
	s.handle("/readyz", "200 while clients are accepted, otherwise 503 with the reason", http.HandlerFunc(s.readyz))
	s.handle("/metrics", "metrics, for Prometheus", metrics.handler())
	s.mux.HandleFunc("GET /{$}", s.index)
	return s
}

// SetReady sets the answer of /readyz: whether the relay accepts clients.
func (s *Server) SetReady(ready bool) { s.ready.Store(ready) }

// CheckReady adds a reason why the relay may not be ready: what check returns. /readyz calls
// check for each request. CheckReady must not be called once the server serves.
func (s *Server) CheckReady(check func() error) { s.checks = append(s.checks, check) }

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if !s.ready.Load() {
		http.Error(w, "not ready", http.StatusServiceUnavailable)
		return
	}
	for _, check := range s.checks {
		if err := check(); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	fmt.Fprintln(w, "ready")
}

// JSON adds a page that shows the value of f as JSON. The server calls f for each
// request. JSON must not be called once the server serves.
func (s *Server) JSON(path, about string, f func() any) {
	s.handle(path, about, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(f()) // the operator's connection has gone
	}))
}

// List adds a page that shows the values of list as an array in JSON. It writes each value
// before it takes the next one, so a long list costs no memory. Like [Server.JSON] it must
// not be called once the server serves.
func List[T any](s *Server, path, about string, list func() iter.Seq[T]) {
	s.handle(path, about, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = writeList(w, list()) // the operator's connection has gone
	}))
}

func writeList[T any](w io.Writer, list iter.Seq[T]) error {
	const indent = "  "
	out := bufio.NewWriterSize(w, 32<<10)
	between := "[\n" + indent
	for v := range list {
		text, err := json.MarshalIndent(v, indent, indent)
		if err != nil {
			return err
		}
		_, _ = out.WriteString(between)            // Flush has the error
		if _, err := out.Write(text); err != nil { // nobody reads the rest
			return err
		}
		between = ",\n" + indent
	}
	end := "\n]\n"
	if between[0] == '[' {
		end = "[]\n"
	}
	_, _ = out.WriteString(end)
	return out.Flush()
}

func (s *Server) handle(path, about string, h http.Handler) {
	s.pages = append(s.pages, page{path, about})
	s.mux.Handle("GET "+path, h)
}

func (s *Server) index(w http.ResponseWriter, _ *http.Request) {
	for _, p := range s.pages {
		fmt.Fprintf(w, "%-12s %s\n", p.path, p.about)
	}
}

// HTTP returns an HTTP server for the listener, with timeouts against clients
// that never end their requests. certificate returns the certificate that the listener shows
// now; for plaintext it is nil.
func (s *Server) HTTP(log *slog.Logger, certificate func() *x509.Certificate) *http.Server {
	const patience = 10 * time.Second
	log = slog.New(loglines.Bounded(log.With("listener", "admin").Handler()))
	return &http.Server{
		Handler:           &guard{next: s.mux, certificate: certificate, log: log},
		ReadHeaderTimeout: patience, ReadTimeout: patience, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10,
		ConnState:      noteState,
		ConnContext:    withSocket,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}
