// Package bootstrap makes the bootstrap configurations of Envoy and gRPC clients whose control plane is the relay.
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

// Client describes a client, and the relays that it connects to.
type Client struct {
	// Servers are the addresses at which clients reach the relays, as HOST:PORT or unix:/path. A client uses a later
	// one if it cannot reach the earlier ones.
	Servers []string
	// NodeID and Cluster identify the client in its Node.
	NodeID, Cluster string
	// TLS is nil for plaintext.
	TLS *TLS
	// TokenFile is the file of the token that proves the client's identity. Empty: the client sends none.
	TokenFile string
	// Authorities are the authorities of xdstp names, without patterns.
	Authorities []string
	// SecondStream makes an Envoy request xdstp names of these authorities on a stream of their own. It needs that only
	// for names in fields next to which there is no config source.
	SecondStream bool
	// DefaultAuthority is the authority of gRPC targets that name none, and of an Envoy's listeners and clusters.
	// Empty: these have old-style names.
	DefaultAuthority string
}

// TLS configures TLS from a client to the relay. Paths are those on the client's machine.
type TLS struct {
	CAFile            string // empty: the system's roots
	CertFile, KeyFile string // empty: no certificate
	ServerName        string // empty: the host of the server
	ServerID          string // a SPIFFE ID that the relay's certificate must have; may be empty
	WorkloadAPI       string // a SPIFFE agent in place of the files, for Envoy; may be empty
	BundleMapFile     string // roots by trust domain, for gRPC; may be empty
}

// ForListener returns the description of a client of a listener of c. The caller sets the Node, and whatever depends
// on the client's machine.
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

// canBeReached reports whether a client can connect to the address on which a listener listens.
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

// check rejects a token that would be sent without encryption.
func (c Client) check() error {
	if c.TokenFile != "" && c.TLS == nil {
		return errors.New("a token needs TLS: anyone on the way could read it, and clients refuse to send it")
	}
	return nil
}

// hosts returns the hosts of the servers that are not unix sockets.
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

// CheckServer rejects an address that is not a relay's.
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
		return fmt.Errorf("%q is an address to listen on, which no client can connect to (want HOST:PORT, as clients see the relay)", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q: the port is no number from 1 to 65535", address)
	}
	return nil
}
