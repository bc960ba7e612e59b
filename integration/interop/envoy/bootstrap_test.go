package envoy

// The bootstraps that `xds-relay bootstrap` prints for the settings of a listener.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

func TestThePrintedBootstrapFitsTheListener(t *testing.T) {
	const relayID, clientID = "spiffe://example.org/relay", "spiffe://example.org/shop"
	hour := func() time.Time { return time.Now().Add(time.Hour) }
	for _, c := range []struct {
		name string
		// listener returns the listener's settings, and the flags with which the bootstrap is printed.
		listener func(s *side, address string, ca *peers.Certifier) (peers.Config, []string)
		unix     bool
	}{
		{name: "unix socket", unix: true, listener: func(*side, string, *peers.Certifier) (peers.Config, []string) {
			return peers.Config{"mode": "0600"}, nil
		}},
		{name: "TLS", listener: func(_ *side, host string, ca *peers.Certifier) (peers.Config, []string) {
			cert, key := ca.Issue("relay", "", hour(), host)
			return peers.Config{"tls": peers.Config{"cert_file": cert, "key_file": key}}, []string{"--ca-file", ca.CA()}
		}},
		{name: "TLS with another name", listener: func(_ *side, _ string, ca *peers.Certifier) (peers.Config, []string) {
			cert, key := ca.Issue("relay", "", hour(), "relay.example.com")
			return peers.Config{"tls": peers.Config{"cert_file": cert, "key_file": key}}, []string{"--ca-file", ca.CA(), "--server-name", "relay.example.com"}
		}},
		{name: "mTLS", listener: func(_ *side, host string, ca *peers.Certifier) (peers.Config, []string) {
			cert, key := ca.Issue("relay", "", hour(), host)
			clientCert, clientKey := ca.Issue("client", "", hour())
			return peers.Config{"tls": peers.Config{"cert_file": cert, "key_file": key, "client_ca_file": ca.CA(), "client_certificates": "require"}},
				[]string{"--ca-file", ca.CA(), "--cert-file", clientCert, "--key-file", clientKey}
		}},
		{name: "SPIFFE IDs in files", listener: func(_ *side, _ string, ca *peers.Certifier) (peers.Config, []string) {
			cert, key := ca.Issue("relay", relayID, hour())
			clientCert, clientKey := ca.Issue("client", clientID, hour())
			return peers.Config{
					"tls":   peers.Config{"cert_file": cert, "key_file": key, "client_ca_file": ca.CA(), "client_certificates": "require"},
					"admit": `identity.spiffe_id == "` + clientID + `"`,
				},
				[]string{"--ca-file", ca.CA(), "--cert-file", clientCert, "--key-file", clientKey, "--server-id", relayID}
		}},
		{name: "JWT", listener: func(s *side, host string, ca *peers.Certifier) (peers.Config, []string) {
			cert, key := ca.Issue("relay", "", hour(), host)
			token := filepath.Join(s.TempDir(), "token")
			if err := os.WriteFile(token, []byte(ca.Token(time.Hour)), 0o600); err != nil {
				s.Fatal(err)
			}
			return peers.Config{
				"tls": peers.Config{"cert_file": cert, "key_file": key},
				"jwt": peers.Config{"issuer": "https://issuer", "audiences": []any{"xds-relay"}, "jwks_file": ca.Keys(), "required": true},
			}, []string{"--ca-file", ca.CA(), "--token-file", token}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var flags []string
			play(t, scenario{
				// The listener does not depend on the form in which the relay speaks to the control plane.
				forms: []form{{delta: true, aggregated: true}}, upstream: []string{delta},
				relay: func(s *side, config peers.Config) {
					address := peers.Address(s)
					host := peers.Host(address)
					if c.unix {
						address = "unix:" + filepath.Join(socketFolder(s), "xds.sock")
					}
					var listener peers.Config
					listener, flags = c.listener(s, host, peers.NewCertifier(s))
					listener["address"] = address
					config["listeners"] = []any{listener}
				},
				// Those of the bootstrap.
				differs:        func(_ row, line string) bool { return strings.HasPrefix(line, "+ certificate ") },
				bootstrapFlags: func(*side) []string { return flags },
				run: func(s *side) {
					first, second := s.backend("first"), s.backend("second")
					s.push(func(w world) { s.shop(w, "one", first) })
					s.step("requests reach the backend", s.reaches(first))
					s.push(func(w world) { w.set("one", endpoints("one", second)) })
					s.step("requests follow a change", s.reaches(second))
				},
			})
		})
	}
}

// socketFolder returns a folder whose path is short enough for a unix socket.
func socketFolder(s *side) string {
	s.Helper()
	folder, err := os.MkdirTemp("", "xds")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(folder) })
	return folder
}
