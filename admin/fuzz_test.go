package admin

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

// FuzzGuard sends requests with any Host and Origin. It serves only hosts that lead to this machine, whatever names others
// make lead here, and only what pages of the same site request.
func FuzzGuard(f *testing.F) {
	for _, host := range []string{"localhost:19000", "127.0.0.1", "[::1]:19000", "[::ffff:127.0.0.1%25x]", "10.0.0.1:80", "evil.example.org", "localhost.", "127.0.0.1.evil.example.org", "0x7f.1"} {
		f.Add(host, "")
		f.Add(host, "http://"+host)
	}
	f.Add("localhost", "null")
	local := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 80}
	f.Fuzz(func(t *testing.T, host, origin string) {
		served := false
		g := &guard{next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }), log: slog.New(slog.DiscardHandler)}
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, local), http.MethodPost, "/", nil)
		if r.Host = host; origin != "" {
			r.Header.Set("Origin", origin)
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if (w.Code == http.StatusOK) != served {
			t.Fatalf("%q is answered with %d, served: %t", host, w.Code, served)
		}
		if !served {
			return
		}
		name := host
		if of, _, err := net.SplitHostPort(host); err == nil {
			name = of
		}
		ip, err := netip.ParseAddr(strings.Trim(name, "[]"))
		if own := err == nil && (ip.IsLoopback() || ip.Unmap().WithZone("").IsLoopback() || ip.Unmap().WithZone("").String() == "10.0.0.1"); !own && !strings.EqualFold(name, "localhost") {
			t.Fatalf("the host %q is served", host)
		}
		if u, err := url.Parse(origin); origin != "" && (err != nil || u.Scheme != "http" || !strings.EqualFold(u.Host, host)) {
			t.Fatalf("the origin %q is served by %q", origin, host)
		}
	})
}
