package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// TestRESTOverTLS is over loopback: https, with HTTP/2, from a trusted server only.
func TestRESTOverTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"version_info": "`+r.Proto+`"}`)
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	for _, tt := range []struct {
		name   string
		config *tls.Config
		want   string // in the error, if there is to be one
	}{
		{"trusted", &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ""},
		{"not trusted", &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}, "certificate"},
		{"under another name", &tls.Config{RootCAs: roots, ServerName: "cp.test", MinVersion: tls.VersionTLS12}, "cp.test"},
		{"plaintext", nil, "400 Bad Request"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := DialREST(server.Listener.Addr().String(), RESTOptions{TLS: tt.config})
			defer conn.Close()
			answer, err := conn.poll(t.Context(), "/v3/discovery:clusters", &discoveryv3.DiscoveryRequest{})
			switch {
			case tt.want != "":
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want an error with %q", err, tt.want)
				}
			case err != nil || answer.version != "HTTP/2.0":
				t.Errorf("got %+v, %v", answer, err)
			}
		})
	}
}

// TestHalfOpenHTTP2IsFoundByAPing: whether or not the server holds requests.
func TestHalfOpenHTTP2IsFoundByAPing(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"version_info": "1"}`)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	var cut atomic.Pointer[atomic.Bool]
	conn := DialREST(server.Listener.Addr().String(), RESTOptions{
		TLS:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ProbeAfter: 50 * time.Millisecond, ProbeTimeout: 50 * time.Millisecond,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			p := &pipe{Conn: conn, cut: new(atomic.Bool), closed: make(chan struct{})}
			cut.Store(p.cut)
			return p, err
		},
	})
	defer conn.Close()
	ask := func() error {
		_, err := conn.poll(t.Context(), "/v3/discovery:clusters", &discoveryv3.DiscoveryRequest{VersionInfo: "0"})
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	cut.Load().Store(true)
	if err := ask(); err == nil || strings.Contains(err.Error(), "no answer for") {
		t.Errorf("over a half-open connection: got %v, want a connection that was lost before request_timeout", err)
	}
	if err := ask(); err != nil {
		t.Errorf("over the next connection: %v", err)
	}
}
