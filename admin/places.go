package admin

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Probes and metrics must not wait for other requests: for bodies that come slowly, or answers that nobody reads. So the
// other requests, and those of metrics, have fewer places than there are connections.
const (
	mostOthers  = MaxConns * 8 / 10
	mostMetrics = MaxConns / 10
)

// places bounds the requests in progress.
type places struct {
	next            http.Handler
	others, metrics atomic.Int32
}

// ServeHTTP implements http.Handler.
func (p *places) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	taken, most, probe := &p.others, int32(mostOthers), false
	switch r.URL.Path {
	case "/healthz", "/readyz":
		probe = true
	case "/metrics":
		taken, most = &p.metrics, mostMetrics
	}
	if r.ContentLength != 0 && (r.Method != http.MethodPost || probe || taken == &p.metrics) {
		dropBody(w)
	}
	if probe {
		p.next.ServeHTTP(w, r)
		return
	}
	defer taken.Add(-1)
	if taken.Add(1) > most {
		dropBody(w)
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many requests are in progress", http.StatusServiceUnavailable)
		return
	}
	body := &requestBody{ReadCloser: r.Body, ended: r.ContentLength == 0}
	r.Body = body
	p.next.ServeHTTP(w, r)
	if !body.ended {
		dropBody(w) // net/http reads the rest once the request has no place any more
	}
}

// requestBody is the body of a request. ended says that nothing is left to read.
type requestBody struct {
	io.ReadCloser
	ended bool
}

// Read implements io.Reader.
func (b *requestBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	b.ended = b.ended || errors.Is(err, io.EOF)
	return n, err
}

// dropBody closes the connection after the answer, without reading the body of the request: net/http would wait for it.
func dropBody(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // a server without deadlines waits
}
