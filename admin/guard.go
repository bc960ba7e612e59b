package admin

// The guard refuses requests that a browser makes on behalf of another site. The operator's
// browser reaches the loopback address too, and with the operator's certificate it reaches
// every admin listener.

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

// ServerHeader is the Server header of every answer, by which commands tell a relay's admin listener from other servers.
const ServerHeader = "xds-relay"

// guard answers 403 to requests for another host, and to requests of another site.
type guard struct {
	next http.Handler
	// certificate returns the listener's current certificate. It is nil for plaintext.
	certificate func() *x509.Certificate
	log         *slog.Logger
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Server", ServerHeader)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	err := g.checkHost(r)
	if err == nil {
		err = checkSite(r)
	}
	if err != nil {
		g.log.Warn("refused a request", "peer", r.RemoteAddr, "error", err)
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	g.next.ServeHTTP(w, r)
}

// checkHost refuses names that an attacker could point to this listener (DNS rebinding): the browser
// then takes the attacker's page and this listener for one site. An address is safe, and so is a name in
// the certificate. No browser connects to a unix socket.
func (g *guard) checkHost(r *http.Request) error {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local != nil && local.Network() == "unix" {
		return nil
	}
	host := hostOf(r.Host)
	if strings.EqualFold(host, "localhost") {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		ip = ip.Unmap().WithZone("")
		if ip.IsLoopback() || ip == addressOf(local) {
			return nil
		}
	}
	if g.certificate != nil && g.certificate().VerifyHostname(host) == nil {
		return nil
	}
	return fmt.Errorf("the admin listener does not serve the host %q: another site may have made its name lead here (DNS rebinding). "+
		"Use localhost, a loopback address, the listener's own address, or a name in its certificate", loglines.Clip(r.Host))
}

// hostOf returns the host of a Host header, without port and brackets.
func hostOf(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
}

func addressOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

var errSite = errors.New("the admin listener does not serve requests that another site makes: open the address itself")

// checkSite refuses requests that pages and links of another site cause. Programs other than
// browsers send neither of these headers.
func checkSite(r *http.Request) error {
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "same-origin" && site != "none" { // none: the user typed the address
			return fmt.Errorf("%w (Sec-Fetch-Site: %q)", errSite, loglines.Clip(site))
		}
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != scheme || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Errorf("%w (Origin: %q)", errSite, loglines.Clip(origin))
		}
	}
	return nil
}
