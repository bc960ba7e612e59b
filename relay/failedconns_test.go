package relay

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
	"github.com/xds-relay/xds-relay/operator"
)

func hasProblem(r *Relay, severity, text string) bool {
	return slices.ContainsFunc(r.observer.LookAround().Problems, func(p operator.Problem) bool {
		return p.Severity == severity && strings.Contains(p.Text, text)
	})
}

// A client that cannot connect is in the log, in the metrics, and among the problems, with what would be right.
func TestConnectionsThatFailBeforeTheirFirstRequest(t *testing.T) {
	t.Parallel()
	dir, ca, stranger := t.TempDir(), certtest.NewCA(t, "ca"), certtest.NewCA(t, "stranger")
	own := ca.Issue(t, certtest.Loopback)
	tlsKeys := fmt.Sprintf("cert_file: %s, key_file: %s", writeFile(t, dir, "cert.pem", own.Cert), writeFile(t, dir, "key.pem", own.Key))
	var log syncBuffer
	r, _ := runRelay(t, fmt.Sprintf(`
listeners:
- {address: "127.0.0.1:0"}
- {address: "127.0.0.2:0", tls: {%[1]s, client_ca_file: %[2]s}}
- {address: "127.0.0.3:0", protocol: rest}
- {address: "127.0.0.4:0", protocol: rest, tls: {%[1]s}}
- {address: "127.0.0.5:0", proxy_protocol: {trusted: [127.0.0.1]}}
- {address: "127.0.0.6:0", tls: {%[1]s}, proxy_protocol: {trusted: [127.0.0.0/8]}}
authorities: [{name: a, directory: %[3]s}]
`, tlsKeys, writeFile(t, dir, "ca.pem", certtest.PEM(ca)), t.TempDir()), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	const grpcPlain, grpcTLS, restPlain, restTLS, proxiedPlain, proxiedTLS = 0, 1, 2, 3, 4, 5

	// handshake does a TLS handshake, and reads until the end: with TLS 1.3, the listener verifies the client later.
	handshake := func(c *tls.Config) func(net.Conn) {
		return func(conn net.Conn) {
			if c.RootCAs == nil {
				c.RootCAs = ca.Pool()
			}
			c.ServerName = "127.0.0.1"
			client := tls.Client(conn, c)
			if client.Handshake() == nil {
				_, _ = io.Copy(io.Discard, client)
			}
		}
	}
	// It sends bytes, and reads until the end. goes sends nothing more after them.
	sends := func(first string) func(net.Conn) {
		return func(conn net.Conn) {
			_, _ = io.WriteString(conn, first)
			_, _ = io.Copy(io.Discard, conn)
		}
	}
	goes := func(first string) func(net.Conn) {
		return func(conn net.Conn) {
			_, _ = io.WriteString(conn, first)
			if c, ok := conn.(*net.TCPConn); ok {
				_ = c.CloseWrite()
			}
			_, _ = io.Copy(io.Discard, conn)
		}
	}
	const (
		v1 = "PROXY TCP4 192.0.2.1 192.0.2.2 1234 443\r\n"
		v2 = "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x04\xd2\x01\xbb"
	)
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	certificate := func(from *certtest.CA, o certtest.Options) []tls.Certificate {
		return []tls.Certificate{from.Issue(t, o).TLS}
	}
	good := certificate(ca, certtest.Options{})
	h2 := []string{"h2"}
	hello := func(conn net.Conn) { // nothing but the first message
		_ = tls.Client(&writesOnly{conn}, &tls.Config{ServerName: "x", MinVersion: tls.VersionTLS12}).Handshake()
	}
	want := r.server.Stats().ConnFailures
	for _, tt := range []struct {
		name     string
		listener int
		does     func(net.Conn)
		want     string // "" if it does not count
	}{
		{"TLS to plaintext", grpcPlain, handshake(&tls.Config{NextProtos: h2}), "tls_to_plaintext"},
		{"HTTP/1", grpcPlain, sends("GET / HTTP/1.1\r\nHost: relay\r\n\r\n"), "http1"},
		{"HTTP/1 that begins as HTTP/2 does", grpcPlain, sends("POST / HTTP/1.1\r\n"), "http1"},
		{"another protocol", grpcPlain, sends("SSH-2.0-OpenSSH_9.2\r\n"), "not_http2"},
		{"a probe of the port", grpcPlain, goes(""), ""},
		{"a part of the preface", grpcPlain, goes(preface[:10]), ""},

		{"HTTP/2 to TLS", grpcTLS, sends(preface), "plaintext_to_tls"},
		{"no certificate", grpcTLS, handshake(&tls.Config{NextProtos: h2}), "no_certificate"},
		{"an expired certificate", grpcTLS, handshake(&tls.Config{NextProtos: h2, Certificates: certificate(ca, certtest.Options{NotAfter: time.Now().Add(-time.Minute)})}), "expired_certificate"},
		{"a certificate of another CA", grpcTLS, handshake(&tls.Config{NextProtos: h2, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &certificate(stranger, certtest.Options{})[0], nil // though the listener does not name its CA
		}}), "untrusted_certificate"},
		{"a client that expects another CA", grpcTLS, handshake(&tls.Config{NextProtos: h2, Certificates: good, RootCAs: stranger.Pool()}), "listener_certificate"},
		{"an old version", grpcTLS, handshake(&tls.Config{NextProtos: h2, Certificates: good, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}), "tls_version"},
		{"HTTP/1 with TLS", grpcTLS, handshake(&tls.Config{NextProtos: []string{"http/1.1"}, Certificates: good}), "alpn"},
		{"TLS without ALPN", grpcTLS, handshake(&tls.Config{Certificates: good}), "alpn"},
		{"a client that goes during the handshake", grpcTLS, hello, "incomplete"},
		{"another client that does", grpcTLS, goes("\x16\x03\x01"), "incomplete"},
		{"no common cipher", grpcTLS, handshake(&tls.Config{NextProtos: h2, Certificates: good, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}}), "other_handshake"},
		{"a probe of the port with TLS", grpcTLS, goes(""), ""},

		{"TLS to plaintext REST", restPlain, handshake(&tls.Config{}), "tls_to_plaintext"},
		{"HTTP/1 to REST", restPlain, sends("GET / HTTP/1.0\r\n\r\n"), ""},
		{"a header of the PROXY protocol", grpcPlain, sends(v1 + preface), "untrusted_proxy_header"},
		{"a header of its version 2", grpcPlain, sends(v2 + preface), "untrusted_proxy_header"},
		{"a header to TLS", grpcTLS, sends(v1 + preface), "untrusted_proxy_header"},
		{"a header of version 2 to TLS", grpcTLS, sends(v2 + preface), "untrusted_proxy_header"},
		{"a header to REST", restPlain, sends(v1 + "GET / HTTP/1.0\r\n\r\n"), "untrusted_proxy_header"},
		{"a header to REST with TLS", restTLS, sends(v2 + "GET / HTTP/1.0\r\n\r\n"), "untrusted_proxy_header"},
		{"a balancer without a header", proxiedPlain, sends(preface), "proxy_header"},
		{"a balancer with TLS without a header", proxiedTLS, handshake(&tls.Config{NextProtos: h2}), "proxy_header"},
		{"a balancer with a part of a header", proxiedPlain, goes(v2[:20]), "proxy_header"},
		{"a balancer with a header that is too long", proxiedTLS, sends(v2[:14] + "\xff\xff" + strings.Repeat("x", 1<<16)), "proxy_header"},
		{"a balancer's probe of the port", proxiedTLS, goes(""), ""},
		{"a balancer's probe with a header", proxiedTLS, goes(v2), ""},

		{"HTTP/1 to REST with TLS", restTLS, sends("GET / HTTP/1.0\r\n\r\n"), "plaintext_to_tls"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			address := r.Addresses()[tt.listener]
			logged := len(log.String())
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			peer := conn.LocalAddr().String()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			tt.does(conn)
			_ = conn.Close()
			if tt.want == "" {
				return // the sums show that it does not count
			}
			await(t, "a line in the log", func() bool { return len(log.String()) > logged })
			want[tt.want]++
			if got := r.server.Stats().ConnFailures; !maps.Equal(got, want) {
				t.Errorf("the failures are %v, want %v", got, want)
				want = got
			}
			lines := log.String()[logged:]
			if strings.Count(lines, "\n") != 1 || !strings.Contains(lines, "level=WARN") || !strings.Contains(lines, "client="+peer+" address="+address+" refused="+tt.want+" reason=") {
				t.Errorf("the log has %s", lines)
			}
			if text := "the last from " + peer; !hasProblem(r, operator.SeverityWarning, text) {
				t.Errorf("the status lacks %q: %+v", text, r.observer.LookAround().Problems)
			}
		})
	}
	if text := askAdmin(r, "/metrics").Body.String(); !strings.Contains(text, "xds_relay_downstream_connections_failed_total{reason=\"tls_to_plaintext\"} 2\n") {
		t.Error("the metrics lack the failed connections")
	}

	// Those who do it right do not count.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1"}}}
	defer client.CloseIdleConnections()
	for _, url := range []string{"http://" + r.Addresses()[restPlain], "https://" + r.Addresses()[restTLS]} {
		resp, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	if _, err := healthpb.NewHealthClient(connectTo(t, r.Addresses()[grpcPlain])).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	if got := r.server.Stats().ConnFailures; !maps.Equal(got, want) {
		t.Errorf("the failures are %v, want %v", got, want)
	}
}

// With a SPIFFE agent, the relay verifies certificates itself, and knows why they fail, too.
func TestSVIDsThatFail(t *testing.T) {
	t.Parallel()
	ca, stranger := certtest.NewCA(t, "ca"), certtest.NewCA(t, "stranger")
	agent, socket := certtest.NewAgent(), filepath.Join(t.TempDir(), "agent.sock")
	agent.Issue(t, "spiffe://example.org/relay", ca, nil)
	agent.Serve(t, socket)
	r, address := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0", tls: {spiffe: {workload_api: "unix:%s"}}}]
authorities: [{name: a, directory: %s}]
`, socket, t.TempDir()), slog.New(slog.DiscardHandler))
	for _, tt := range []struct {
		want string
		from *certtest.CA
		o    certtest.Options
	}{
		{"expired_certificate", ca, certtest.Options{SPIFFEID: "spiffe://example.org/client", NotAfter: time.Now().Add(-time.Minute)}},
		{"untrusted_certificate", stranger, certtest.Options{SPIFFEID: "spiffe://example.org/client"}},
		{"untrusted_certificate", stranger, certtest.Options{SPIFFEID: "spiffe://example.com/client"}},
	} {
		pair := tt.from.Issue(t, tt.o)
		before := r.server.Stats().ConnFailures[tt.want]
		await(t, tt.want, func() bool { // at first the relay may have no SVID
			conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &pair.TLS, nil
			}})
			if err == nil {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
			return r.server.Stats().ConnFailures[tt.want] > before
		})
	}
}

// writesOnly is a connection that the client closes instead of reading from it.
type writesOnly struct{ net.Conn }

func (*writesOnly) Read([]byte) (int, error) { return 0, context.Canceled }
