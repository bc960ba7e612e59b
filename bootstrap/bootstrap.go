// Package bootstrap makes the bootstraps of clients whose control plane is the relay: of Envoy
// and of gRPC.
package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/xds-relay/xds-relay/configs"
)

// Client is what a bootstrap says of a client, and of the relays that it connects to.
type Client struct {
	// Servers are where clients see the relays, as HOST:PORT or unix:/path. A client uses a later
	// one if it cannot reach those before.
	Servers []string
	// NodeID and Cluster are the client's Node.
	NodeID, Cluster string
	// TLS is nil for plaintext.
	TLS *TLS
	// TokenFile has the token that proves who the client is. Empty: it sends none.
	TokenFile string
	// Authorities are those of xdstp names, without patterns.
	Authorities []string
	// DefaultAuthority is that of gRPC's targets without an authority, and of the listeners and
	// clusters of an Envoy. Empty: these have old-style names.
	DefaultAuthority string
}

// TLS is TLS from a client to the relay. Files are those of the client's machine.
type TLS struct {
	CAFile            string // empty: the system's roots
	CertFile, KeyFile string // empty: no certificate
	ServerName        string // empty: the host of the server
	ServerID          string // a SPIFFE ID that the relay's certificate must have; may be empty
	WorkloadAPI       string // a SPIFFE agent in place of the files, for Envoy; may be empty
	BundleMapFile     string // roots by trust domain, for gRPC; may be empty
}

// ForListener returns what a client of a listener of c needs. What depends on the client's
// machine, and its Node, is left to the caller.
func ForListener(c *configs.Config, l *configs.Listener) Client {
	var client Client
	if _, unix := configs.UnixPath(l.Address); unix || canBeReached(l.Address) {
		client.Servers = []string{l.Address}
	}
	if l.TLS != nil {
		client.TLS = &TLS{WorkloadAPI: l.TLS.SPIFFE.WorkloadAPI}
	}
	for _, a := range c.Authorities {
		if !strings.HasPrefix(a.Name, "*.") {
			client.Authorities = append(client.Authorities, a.Name)
		}
	}
	if len(c.OldStyleNames) == 0 && len(client.Authorities) == 1 {
		client.DefaultAuthority = client.Authorities[0]
	}
	return client
}

// canBeReached reports whether a client can connect to what a listener listens on.
func canBeReached(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "0" {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || !ip.IsUnspecified()
}

// NeedsCertificate reports whether clients of l have to show a certificate.
func NeedsCertificate(l *configs.Listener) bool {
	return l.TLS != nil && l.TLS.ClientCertificates == configs.ClientCertificatesRequire &&
		(l.TLS.ClientCAFile != "" || l.TLS.SPIFFE.WorkloadAPI != "")
}

// NeedsToken reports whether clients of l have to send a token.
func NeedsToken(l *configs.Listener) bool { return l.JWT != nil && l.JWT.Required }

// check refuses a token that would be sent in the clear.
func (c Client) check() error {
	if c.TokenFile != "" && c.TLS == nil {
		return errors.New("a token needs TLS: anyone on the way could read it, and clients refuse to send it")
	}
	return nil
}

// hosts returns the hosts of the servers that are no unix sockets.
func (c Client) hosts() (hosts []string) {
	for _, address := range c.Servers {
		if _, unix := configs.UnixPath(address); unix {
			continue
		}
		if host, _, err := net.SplitHostPort(address); err == nil {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// CheckServer refuses what is no address of a relay.
func CheckServer(address string) error {
	if path, unix := configs.UnixPath(address); unix {
		if !strings.HasPrefix(path, "/") {
			return fmt.Errorf("%q: want unix:/path", address)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	switch {
	case err != nil || host == "" || port == "":
		return fmt.Errorf("%q: want HOST:PORT, as clients see the relay, or unix:/path", address)
	case port == "0" || !canBeReached(address):
		return fmt.Errorf("%q is where a relay may listen, and no client can connect to (want HOST:PORT, as clients see the relay)", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q: the port is no number from 1 to 65535", address)
	}
	return nil
}
