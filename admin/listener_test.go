package admin

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// serveLimited serves the operator with so many connections at most.
func serveLimited(t *testing.T, most int, s *Server) (address string) {
	t.Helper()
	var lc net.ListenConfig
	socket, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	limited := Limit(socket).(*limitedListener)
	if limited.most != MaxConns {
		t.Errorf("%d connections are allowed, want %d", limited.most, MaxConns)
	}
	limited.most = most
	server := s.HTTP(slog.New(slog.DiscardHandler), nil)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(limited) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return socket.Addr().String()
}

func newServer(t *testing.T) *Server {
	t.Helper()
	metrics, err := NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	return New(metrics)
}

func connect(t *testing.T, address string) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return conn
}

// ask makes a request on a connection, and returns what comes of it.
func ask(t *testing.T, conn net.Conn, path string) string {
	t.Helper()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return ""
	}
	b := make([]byte, 1024)
	n, _ := conn.Read(b) // nothing if it is closed
	return string(b[:n])
}

// Whoever opens connections and says nothing does not keep the operator out, and takes few
// descriptors.
func TestConnectionsWithoutARequestGoFirst(t *testing.T) {
	address := serveLimited(t, 3, newServer(t))
	var silent []net.Conn
	for range 5 {
		silent = append(silent, connect(t, address))
	}
	for i, conn := range silent[:2] {
		if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("connection %d of 5 is open, where 3 may be", i)
		}
	}
	if got := ask(t, connect(t, address), "/healthz"); !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("a new connection gets %q", got)
	}
	if got := ask(t, silent[4], "/healthz"); !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("the newest of those that were silent gets %q", got)
	}
}

func TestConnectionsWithARequestStay(t *testing.T) {
	s := newServer(t)
	began, end := make(chan struct{}), make(chan struct{})
	s.mux.HandleFunc("GET /slow", func(w http.ResponseWriter, _ *http.Request) {
		began <- struct{}{}
		<-end
		_, _ = io.WriteString(w, "done")
	})
	address := serveLimited(t, 2, s)
	answers := make(chan string, 2)
	for range 2 {
		conn := connect(t, address)
		go func() { answers <- ask(t, conn, "/slow") }()
		<-began
	}
	if _, err := connect(t, address).Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a connection too many is not closed: %v", err)
	}
	close(end)
	for range 2 {
		if got := <-answers; !strings.HasPrefix(got, "HTTP/1.1 200") {
			t.Errorf("a request is answered with %q", got)
		}
	}
}

// Bodies that never come keep probes and metrics from nobody, whatever they are sent to.
func TestSlowBodiesDelayNoProbe(t *testing.T) {
	s := newServer(t)
	s.Upload("/check", 1<<20, func(http.ResponseWriter, *http.Request, []byte) {})
	address := serveLimited(t, MaxConns, s)
	for _, attack := range []string{"POST /check", "GET /healthz", "GET /metrics", "POST /nowhere", "PUT /readyz", "POST /readyz"} {
		t.Run(attack, func(t *testing.T) {
			for range MaxConns + 30 {
				conn := connect(t, address)
				// It may be refused and closed by now.
				_, _ = io.WriteString(conn, attack+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx")
			}
			began := time.Now()
			for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
				got := ""
				// Its connection may be the oldest without a request, and others may have the places for metrics for a moment.
				for (got == "" || strings.Contains(got, "too many requests")) && time.Since(began) < 5*time.Second {
					got = ask(t, connect(t, address), path)
				}
				if !strings.HasPrefix(got, "HTTP/1.1 200") && (path != "/readyz" || !strings.HasPrefix(got, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nCross-Origin")) {
					t.Errorf("%s is answered with %q", path, got)
				}
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the probes took %v", took)
			}
		})
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// What net/http has to say comes in the relay's log, in its form.
func TestErrorsOfTheOperatorsListenerAreLogged(t *testing.T) {
	var out bytes.Buffer
	newServer(t).HTTP(slog.New(slog.NewTextHandler(&out, nil)), nil).ErrorLog.Print("http: Accept error: too many open files")
	if got := out.String(); !strings.Contains(got, `level=WARN msg="http: Accept error: too many open files" listener=admin`) {
		t.Errorf("got %q", got)
	}
}
