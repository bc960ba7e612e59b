package configs

// This file is TLS, towards clients and towards servers. Files are PEM, and relative to the
// folder in which the relay is started. The relay reads them again when they change.

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// ListenerTLS is TLS towards clients. It has either files or SPIFFE.
type ListenerTLS struct {
	// The listener's certificate.
	CertFile string `yaml:"cert_file" absent:"none, with spiffe"`
	// The key of `cert_file`.
	KeyFile string `yaml:"key_file" absent:"none, with spiffe"`
	// The roots of client certificates. With a certificate that none of them has signed, the handshake
	// fails.
	ClientCAFile string `yaml:"client_ca_file" absent:"the relay requests no certificate from clients"`
	// Whether clients need a certificate, if there is `client_ca_file` or `spiffe`.
	//
	//	require    the handshake fails without one
	//	optional   the relay also accepts clients without one
	ClientCertificates ClientCertificates `yaml:"client_certificates" default:"require"`
	// Whether a stream ends when its client's certificate expires. It ends a little earlier, by up to a
	// tenth of the certificate's lifetime and at most 1m. The client then has to connect with a new
	// certificate.
	EndStreamsAtExpiry bool `yaml:"end_streams_at_expiry" default:"true"`
	// The certificate, and the roots of client certificates, from a SPIFFE agent, in place of
	// the three files. Clients need an SVID of a trust domain whose bundle the agent has.
	SPIFFE SPIFFE `yaml:"spiffe"`
	// The lowest version of TLS.
	MinVersion TLSVersion `yaml:"min_version" default:"\"1.2\""`
}

// ServerTLS is TLS towards a server. An empty one trusts the system's roots.
type ServerTLS struct {
	// The roots to trust.
	CAFile string `yaml:"ca_file" absent:"the system's roots"`
	// The certificate that the relay shows to the server, with `key_file`.
	CertFile string `yaml:"cert_file" absent:"none"`
	// The key of `cert_file`.
	KeyFile string `yaml:"key_file" absent:"none"`
	// The name that the relay sends (SNI), and that the server's certificate must have.
	ServerName string `yaml:"server_name" absent:"the host of the address"`
	// A SPIFFE ID or a DNS name that the server's certificate must have. A SPIFFE ID replaces the check
	// of `server_name` or the host. A DNS name is checked in addition.
	ServerID string `yaml:"server_id" absent:"none"`
	// The relay's certificate, and the roots to trust, from a SPIFFE agent, in place of the three
	// files.
	SPIFFE SPIFFE `yaml:"spiffe"`
	// The lowest version of TLS.
	MinVersion TLSVersion `yaml:"min_version" default:"\"1.2\""`
}

// SPIFFE is a SPIFFE agent, such as SPIRE's. It need not run when the relay starts: handshakes fail
// until it does.
type SPIFFE struct {
	// The address of the agent's Workload API: unix:/path, or tcp://IP:port.
	WorkloadAPI string `yaml:"workload_api" absent:"files"`
}

// Number returns the version's constant of crypto/tls.
func (v TLSVersion) Number() uint16 {
	if v == TLS13 {
		return tls.VersionTLS13
	}
	return tls.VersionTLS12
}

// Host returns the name that the certificate of s must have, unless its TLS names a SPIFFE ID.
func (s *Server) Host() string {
	if s.TLS != nil && s.TLS.ServerName != "" {
		return s.TLS.ServerName
	}
	host, _, err := net.SplitHostPort(s.Address)
	if err != nil {
		return s.Address // no checked configuration has that
	}
	return host
}

func (k *checker) listenerTLS(path string, t *ListenerTLS) {
	if k.spiffe(path, t.SPIFFE, "cert_file", "key_file", "client_ca_file") {
		return
	}
	k.present(path+".cert_file", t.CertFile, "want the file of the server's certificate")
	k.present(path+".key_file", t.KeyFile, "want the file of the certificate's key")
	if k.has(path+".client_certificates") && t.ClientCAFile == "" {
		k.fail(path+".client_ca_file", "missing, and client_certificates needs it (want the file of the roots of client certificates)")
	}
}

func (k *checker) serverTLS(path string, t *ServerTLS) {
	if !k.spiffe(path, t.SPIFFE, "ca_file", "cert_file", "key_file") && (t.CertFile == "") != (t.KeyFile == "") {
		if t.CertFile == "" {
			k.fail(path+".cert_file", "missing (want the certificate of key_file, or neither)")
		} else {
			k.fail(path+".key_file", "missing (want the key of cert_file, or neither)")
		}
	}
	if t.ServerID != "" {
		if err := checkServerID(t.ServerID); err != nil {
			k.fail(path+".server_id", "%w", err)
		}
	}
}

// spiffe reports whether the TLS at path has an agent, and refuses the files that the agent replaces.
func (k *checker) spiffe(path string, s SPIFFE, replaced ...string) bool {
	at := path + ".spiffe"
	if !k.has(at) || k.isUnusable(at) {
		return k.isUnusable(at)
	}
	if k.present(at+".workload_api", s.WorkloadAPI, "want the address of the agent, such as unix:/run/spire/agent.sock") {
		if err := CheckWorkloadAPI(s.WorkloadAPI); err != nil {
			k.fail(at+".workload_api", "%w", err)
		}
	}
	for _, key := range replaced {
		if k.has(path + "." + key) {
			k.fail(path+"."+key, "is given, and so is spiffe, which replaces it (want one of them)")
		}
	}
	return true
}

// CheckWorkloadAPI returns an error if address is not that of a SPIFFE agent.
func CheckWorkloadAPI(address string) error {
	u, err := url.Parse(address)
	if err == nil && u.Opaque == "" && u.User == nil && u.RawQuery == "" && u.Fragment == "" {
		_, notIP := netip.ParseAddrPort(u.Host)
		switch {
		case u.Scheme == "unix" && u.Host == "" && u.Path != "":
			return nil
		case u.Scheme == "tcp" && notIP == nil && u.Path == "":
			return nil
		}
	}
	return fmt.Errorf("%q is not the address of a Workload API (want unix:/path or tcp://IP:port)", address)
}

// dnsName matches what a certificate can have as a DNS name, without a *.
var dnsName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*$`)

func checkServerID(id string) error {
	if strings.Contains(id, "://") {
		switch parsed, err := spiffeid.FromString(id); {
		case err != nil:
			return fmt.Errorf("%q is not a SPIFFE ID: %w (want spiffe://TRUST-DOMAIN/PATH)", id, err)
		case parsed.Path() == "":
			return fmt.Errorf("%q is a trust domain and no server (want spiffe://TRUST-DOMAIN/PATH)", id)
		}
		return nil
	}
	if _, err := netip.ParseAddr(id); err == nil || !dnsName.MatchString(id) {
		return fmt.Errorf("%q is neither a SPIFFE ID nor a DNS name (want such as spiffe://example.org/istiod or istiod.example.org)", id)
	}
	return nil
}
