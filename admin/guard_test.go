package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// request returns the answer of a listener at local to a request with a Host and headers.
func request(t *testing.T, s *Server, local net.Addr, leaf *x509.Certificate, host string, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	var certificate func() *x509.Certificate
	r := httptest.NewRequest(http.MethodGet, "/healthz", nil)
	if leaf != nil {
		certificate = func() *x509.Certificate { return leaf }
		r.TLS = &tls.ConnectionState{}
	}
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
	r.Host = host
	for key, values := range header {
		r.Header[key] = values
	}
	w := httptest.NewRecorder()
	s.HTTP(slog.New(slog.DiscardHandler), certificate).Handler.ServeHTTP(w, r)
	return w
}

func TestRequestsForAnotherHostAreRefused(t *testing.T) {
	loopback := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 19000}
	pod := &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 19000}
	pod6 := &net.TCPAddr{IP: net.ParseIP("2001:db8::1"), Port: 19000}
	unix := &net.UnixAddr{Name: "/run/admin.sock", Net: "unix"}
	leaf := &x509.Certificate{DNSNames: []string{"relay.example.com", "*.relay"}, IPAddresses: []net.IP{net.IPv4(10, 9, 9, 9)}}
	s := newServer(t)
	for _, tt := range []struct {
		about   string
		local   net.Addr
		leaf    *x509.Certificate
		host    string
		allowed bool
	}{
		{"loopback", loopback, nil, "127.0.0.1:19000", true},
		{"loopback through a tunnel", loopback, nil, "127.0.0.1:8080", true},
		{"another loopback address", loopback, nil, "127.1.2.3", true},
		{"loopback of IPv6", loopback, nil, "[::1]:19000", true},
		{"loopback of IPv6 without a port", loopback, nil, "[::1]", true},
		{"loopback of IPv4 in IPv6", loopback, nil, "[::ffff:127.0.0.1]:19000", true},
		{"localhost", loopback, nil, "localhost:19000", true},
		{"localhost in capitals", loopback, nil, "LocalHost", true},
		{"a name that leads here", loopback, nil, "evil.example:19000", false},
		{"a name that begins like localhost", loopback, nil, "localhost.evil.example:19000", false},
		{"a name that begins like an address", loopback, nil, "127.0.0.1.evil.example", false},
		{"a short form of an address", loopback, nil, "127.1:19000", false},
		{"the address of all interfaces", loopback, nil, "0.0.0.0:19000", false},
		{"another address", loopback, nil, "10.1.2.3:19000", false},
		{"no host", loopback, nil, "", false},
		{"no host but a port", loopback, nil, ":19000", false},
		{"a name of the certificate, without TLS", loopback, nil, "relay.example.com", false},
		{"a name of the certificate", pod, leaf, "relay.example.com:19000", true},
		{"a name of the certificate by its wildcard", pod, leaf, "a.relay:19000", true},
		{"an address of the certificate", pod, leaf, "10.9.9.9:19000", true},
		{"the listener's own address", pod, leaf, "10.1.2.3:19000", true},
		{"the listener's own address of IPv6", pod6, leaf, "[2001:db8::1]:19000", true},
		{"another name, with TLS", pod, leaf, "evil.example:19000", false},
		{"another address, with TLS", pod, leaf, "10.1.2.4:19000", false},
		{"a unix socket", unix, nil, "anything", true},
	} {
		w := request(t, s, tt.local, tt.leaf, tt.host, nil)
		if allowed := w.Code == http.StatusOK; allowed != tt.allowed {
			t.Errorf("%s: %q gets %d: %s", tt.about, tt.host, w.Code, w.Body)
		}
		if !tt.allowed && (w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "DNS rebinding")) {
			t.Errorf("%s: %q gets %d: %s", tt.about, tt.host, w.Code, w.Body)
		}
	}
}

func TestRequestsOfAnotherSiteAreRefused(t *testing.T) {
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 19000}
	leaf := &x509.Certificate{DNSNames: []string{"relay.example.com"}}
	s := newServer(t)
	for _, tt := range []struct {
		about   string
		leaf    *x509.Certificate
		header  http.Header
		allowed bool
	}{
		{"no browser", nil, nil, true},
		{"an address that the user typed", nil, http.Header{"Sec-Fetch-Site": {"none"}}, true},
		{"the listener's own page", nil, http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {"http://localhost:19000"}}, true},
		{"a page of another site", nil, http.Header{"Sec-Fetch-Site": {"cross-site"}}, false},
		{"a page on another port", nil, http.Header{"Sec-Fetch-Site": {"same-site"}}, false},
		{"a word that nobody knows", nil, http.Header{"Sec-Fetch-Site": {"first-party"}}, false},
		{"two words", nil, http.Header{"Sec-Fetch-Site": {"none", "cross-site"}}, false},
		{"the origin of another site", nil, http.Header{"Origin": {"https://evil.example"}}, false},
		{"the origin of another port", nil, http.Header{"Origin": {"http://localhost:3000"}}, false},
		{"the origin of another scheme", nil, http.Header{"Origin": {"https://localhost:19000"}}, false},
		{"the origin over TLS", leaf, http.Header{"Origin": {"https://localhost:19000"}}, true},
		{"the origin without TLS", leaf, http.Header{"Origin": {"http://localhost:19000"}}, false},
		{"an origin that is hidden", nil, http.Header{"Origin": {"null"}}, false},
		{"an empty origin", nil, http.Header{"Origin": {""}}, false},
		{"two origins", nil, http.Header{"Origin": {"http://localhost:19000", "https://evil.example"}}, false},
	} {
		w := request(t, s, local, tt.leaf, "localhost:19000", tt.header)
		if allowed := w.Code == http.StatusOK; allowed != tt.allowed {
			t.Errorf("%s: %v gets %d: %s", tt.about, tt.header, w.Code, w.Body)
		}
		if !tt.allowed && (w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "another site makes")) {
			t.Errorf("%s: %v gets %d: %s", tt.about, tt.header, w.Code, w.Body)
		}
	}
}

func TestRefusedRequestsAreLogged(t *testing.T) {
	var out bytes.Buffer
	r := httptest.NewRequest(http.MethodGet, "http://evil.example/clients", nil)
	newServer(t).HTTP(slog.New(slog.NewTextHandler(&out, nil)), nil).Handler.ServeHTTP(httptest.NewRecorder(), r)
	if got := out.String(); !strings.Contains(got, `level=WARN msg="refused a request" listener=admin`) || !strings.Contains(got, "evil.example") {
		t.Errorf("got %q", got)
	}
}
