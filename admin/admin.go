// Package admin is the operator's listener. It serves health, metrics, pages about clients and control
// planes, and actions of the operator, over HTTP. Only a POST changes anything. The socket decides who
// may connect: it is on loopback, is a unix socket, or has TLS with client certificates. The guard
// refuses requests that browsers make on behalf of other sites.
package admin

import (
	"bufio"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Server answers the operator's requests. Its methods may be called
// concurrently.
type Server struct {
	mux   *http.ServeMux
	pages []page
	ready atomic.Bool
	front http.Handler // nil for the list of pages
	// checks are the checks of readiness.
	checks []readyCheck
	// grpc answers gRPC calls; nil if the listener serves none.
	grpc http.Handler
}

// readyCheck is a check of readiness, or a varying number of them.
type readyCheck struct {
	name  string
	check func() (note string, err error)
	// each takes the place of check if the number of checks varies: it calls yield for each check.
	each func(yield func(name, note string, err error))
}

type page struct{ path, about string }

// New returns a server with /healthz, /readyz and, from metrics, /metrics.
func New(metrics *Metrics) *Server {
	s := &Server{mux: http.NewServeMux()}
	s.handle("/healthz", "200 while the process answers", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	}))
	s.CheckReady("listeners", func() (string, error) {
		if !s.ready.Load() {
			return "", errors.New("the relay starts or ends")
		}
		return "", nil
	})
	s.handle("/readyz", "200 while the relay is ready for clients, otherwise 503 with the reason; ?verbose has all reasons", http.HandlerFunc(s.readyz))
	s.handle("/metrics", "metrics, for Prometheus", metrics.handler())
	s.mux.HandleFunc("GET /{$}", s.index)
	return s
}

// SetReady sets whether the relay accepts clients, which is the first check of /readyz.
func (s *Server) SetReady(ready bool) { s.ready.Store(ready) }

// IsReady reports whether /readyz says that the relay is ready.
func (s *Server) IsReady() bool {
	ready := true
	s.eachCheck(func(_, _ string, err error) { ready = ready && err == nil })
	return ready
}

// eachCheck calls f with the result of each check of readiness.
func (s *Server) eachCheck(f func(name, note string, err error)) {
	for _, c := range s.checks {
		if c.each != nil {
			c.each(func(name, note string, err error) { f(c.name+"/"+name, note, err) })
			continue
		}
		note, err := c.check()
		f(c.name, note, err)
	}
}

// CheckReady adds a check of readiness. If check returns an error, the relay is not ready. Otherwise
// /readyz?verbose shows its note. /readyz calls check for each request. CheckReady must not be called
// once the server serves.
func (s *Server) CheckReady(name string, check func() (note string, err error)) {
	s.checks = append(s.checks, readyCheck{name: name, check: check})
}

// CheckReadyEach is CheckReady for a varying number of checks, such as one for each authority: each
// iterates over their names, notes and errors.
func (s *Server) CheckReadyEach(name string, each func(yield func(name, note string, err error))) {
	s.checks = append(s.checks, readyCheck{name: name, each: each})
}

// readyz answers whether the relay is ready. With ?verbose it lists all checks, as Kubernetes does.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	var all strings.Builder
	var first error
	add := func(name, note string, err error) {
		switch {
		case err != nil:
			fmt.Fprintf(&all, "[-]%s %v\n", name, err)
		case note != "":
			fmt.Fprintf(&all, "[+]%s ok (%s)\n", name, note)
		default:
			fmt.Fprintf(&all, "[+]%s ok\n", name)
		}
		if first == nil {
			first = err
		}
	}
	s.eachCheck(add)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	verdict, short := "passed", "ready"
	if first != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		verdict, short = "failed", "not ready: "+first.Error()
	}
	if r.URL.Query().Has("verbose") {
		fmt.Fprintf(w, "%sreadyz check %s\n", &all, verdict)
		return
	}
	fmt.Fprintln(w, short)
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

// GRPC sets the handler of gRPC calls, over HTTP/2 with TLS or without. The guard refuses calls of other
// sites, as it does all requests. Like [Server.JSON] it must not be called once the server serves.
func (s *Server) GRPC(h http.Handler) { s.grpc = h }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.grpc != nil && r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		s.grpc.ServeHTTP(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

func (s *Server) handle(path, about string, h http.Handler) {
	s.pages = append(s.pages, page{path, about})
	s.mux.Handle("GET "+path, h)
}

// Hidden adds a path that the list of pages leaves out, because other pages link to it. Like
// [Server.JSON] it must not be called once the server serves.
func (s *Server) Hidden(path string, h http.Handler) { s.mux.Handle("GET "+path, h) }

// Front sets the page that browsers get at "/". Other clients get the list of pages. Like [Server.JSON]
// it must not be called once the server serves.
func (s *Server) Front(h http.Handler) { s.front = h }

func (s *Server) index(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Vary", "Accept")
	if s.front != nil && strings.Contains(r.Header.Get("Accept"), "text/html") {
		s.front.ServeHTTP(w, r)
		return
	}
	for _, p := range s.pages {
		fmt.Fprintf(w, "%-16s %s\n", p.path, p.about)
	}
}

// HTTP returns an HTTP server for the listener, with timeouts against clients that never end their
// requests. certificate returns the listener's current certificate; for plaintext it is nil.
func (s *Server) HTTP(log *slog.Logger, certificate func() *x509.Certificate) *http.Server {
	const patience = 10 * time.Second
	log = slog.New(loglines.Bounded(log.With("listener", "admin").Handler()))
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           &places{next: &guard{next: s, certificate: certificate, log: log}},
		Protocols:         protocols,
		ReadHeaderTimeout: patience, ReadTimeout: patience, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10,
		ConnState:      noteState,
		ConnContext:    withSocket,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}
