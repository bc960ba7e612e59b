package downstream

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Over HTTP/2 a REST listener's connection is read no faster than its requests may come, also
// if each is reset at once.
func TestRESTConnectionsAreReadNoFasterThanRequestsMayCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, log := newTestServer(nil, 0)
		client, c := net.Pipe()
		p := pipeListener{next: make(chan net.Conn, 1)}
		p.next <- c
		relay, err := server.ListenREST(p, nil, ListenerOptions{Limits: Limits{RequestsPerSecond: 10, RequestBurst: 3}}).Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = errors.Join(client.Close(), relay.Close()) }()
		reset := frames(func(f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true})
			_ = f.WriteRSTStream(1, http2.ErrCodeCancel)
		})
		began := time.Now()
		send := func(b []byte, want time.Duration) {
			t.Helper()
			if err := transfer(t, client, relay, b); err != nil {
				t.Fatal(err)
			}
			if after := time.Since(began); after != want {
				t.Errorf("it is read after %v, want %v", after, want)
			}
		}
		send([]byte(http2.ClientPreface), 0)
		send(bytes.Repeat(reset, 3), 0)
		send(reset, 0) // one too many: it costs nothing but time
		send(reset, 100*time.Millisecond)
		send(reset, 200*time.Millisecond)
		if n := server.Stats().Limits["requests_per_second"]; n != 2 {
			t.Errorf("%d waits are counted, want 2", n)
		}
		if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], fasterThanRead) || !strings.Contains(lines[0], "limit=requests_per_second max=10") {
			t.Errorf("the log has %q", lines)
		}
	})
}

// A client that does not speak TLS, or not enough of it, is logged, and gets the reason if it can read it.
func TestFailedHandshakesOfRESTListeners(t *testing.T) {
	for _, test := range []struct{ name, sent, answer, logged string }{
		{"a request without TLS", "GET /v3/discovery:clusters HTTP/1.1\r\n\r\n", "HTTP/1.0 400 Bad Request\r\n", "first record does not look like a TLS handshake"},
		{"a client that goes", "\x16\x03\x01", "", "EOF"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server, log := newTestServer(newTestCache(&recordingSource{}, 1000), 0)
			with := httptest.NewUnstartedServer(nil)
			with.StartTLS() // for its certificate
			defer with.Close()
			socket, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			o := ListenerOptions{LongPoll: time.Second}
			srv, served := server.HTTPServer(o), make(chan error, 1)
			go func() { served <- srv.Serve(server.ListenREST(socket, with.TLS, o)) }()
			client, err := net.Dial("tcp", socket.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(client, test.sent); err != nil {
				t.Fatal(err)
			}
			if c, ok := client.(*net.TCPConn); ok {
				_ = c.CloseWrite() // the answer says whether it is there
			}
			answer, _ := io.ReadAll(client)
			if !strings.HasPrefix(string(answer), test.answer) || (test.answer == "") != (len(answer) == 0) {
				t.Errorf("the client is answered %q, want %q", answer, test.answer)
			}
			_ = client.Close()
			if err := srv.Close(); err != nil {
				t.Error(err)
			}
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
			if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "TLS handshake failed") || !strings.Contains(lines[0], test.logged) {
				t.Errorf("the log has %q, want %s", lines, test.logged)
			}
		})
	}
}

// gRPC logs nothing about failed handshakes.
func TestFailedHandshakesOfGRPCListeners(t *testing.T) {
	server, log := newTestServer(newTestCache(&recordingSource{}, 1000), 0)
	with := httptest.NewUnstartedServer(nil)
	with.StartTLS() // for its certificate
	defer with.Close()
	config := with.TLS.Clone()
	config.ClientAuth = tls.RequireAnyClientCert
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := ListenerOptions{}
	srv, served := grpc.NewServer(append(ServerOptions(o), grpc.Creds(Metered(credentials.NewTLS(config))))...), make(chan error, 1)
	go func() { served <- srv.Serve(server.Listen(socket, o)) }()
	client, err := tls.Dial("tcp", socket.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); err == nil { // the listener has refused the client then
		t.Error("a client without a certificate receives something")
	}
	_ = client.Close()
	srv.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "TLS handshake failed") || !strings.Contains(lines[0], "client didn't provide a certificate") {
		t.Errorf("the log has %q, want why", lines)
	}
}
