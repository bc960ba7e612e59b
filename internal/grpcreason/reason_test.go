package grpcreason

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// The reasons are those of gRPC itself, with servers that are really there.
func TestReasonsOfGRPC(t *testing.T) {
	site := httptest.NewServer(http.NotFoundHandler())
	defer site.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	closing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer closing.Close()
	go func() {
		for {
			c, err := closing.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.ReadFull(c, make([]byte, len(http2.ClientPreface))); c.Close() }()
		}
	}()
	empty := grpc.NewServer()
	defer empty.Stop()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = empty.Serve(plain) }()
	skips := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // it verifies nothing
	for _, tt := range []struct {
		name, address string
		creds         credentials.TransportCredentials
		want          Cause
		text          string
	}{
		{"an HTTP server", site.Listener.Addr().String(), insecure.NewCredentials(), HTTP1, "HTTP/1.1"},
		{"a server that wants TLS", closing.Addr().String(), insecure.NewCredentials(), WantsTLS, "error reading server preface"},
		{"a server without TLS", plain.Addr().String(), skips, Plaintext, "first record does not look like a TLS handshake"},
		{"nobody", gone.Addr().String(), insecure.NewCredentials(), Other, "connection refused"},
		{"a server without the service", plain.Addr().String(), insecure.NewCredentials(), NoService, "unknown service"},
	} {
		conn, err := grpc.NewClient(tt.address, grpc.WithTransportCredentials(tt.creds))
		if err != nil {
			t.Fatal(err)
		}
		_, err = healthv1.NewHealthClient(conn).Check(context.Background(), &healthv1.HealthCheckRequest{})
		conn.Close()
		text, cause := Plain(status.Convert(err).Message())
		if cause != tt.want || !strings.Contains(text, tt.text) || strings.Contains(text, "desc =") || strings.HasSuffix(text, `"`) {
			t.Errorf("%s: %q is %q, cause %d, want %d", tt.name, err, text, cause, tt.want)
		}
	}
	if text, cause := Plain("name resolver error: produced zero addresses"); cause != NoAddress || !strings.Contains(text, "zero") {
		t.Errorf("no address: %q, cause %d", text, cause)
	}
}
