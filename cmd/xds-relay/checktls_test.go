package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

func TestCheckSaysHowConnectionsAreSecured(t *testing.T) {
	t.Chdir(t.TempDir())
	ca := certtest.NewCA(t, "ca")
	own := ca.Issue(t, certtest.Loopback)
	expired := ca.Issue(t, certtest.Options{NotAfter: time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)})
	for name, data := range map[string][]byte{
		"cert.pem": own.Cert, "key.pem": own.Key, "ca.pem": certtest.PEM(ca), "token": []byte("eyJ"),
		"old.pem": expired.Cert, "old-key.pem": expired.Key,
		"relay.yaml": []byte(`listeners:
  - {address: "127.0.0.1:1", tls: {cert_file: cert.pem, key_file: key.pem}}
  - {address: "127.0.0.1:2", tls: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem}}
  - {address: "127.0.0.1:3", tls: {cert_file: old.pem, key_file: old-key.pem, client_ca_file: ca.pem, client_certificates: optional}}
  - {address: "127.0.0.1:4", tls: {spiffe: {workload_api: "unix:/agent.sock"}}}
authorities:
  - name: a
    servers:
      - {address: "a:1", tls: {}}
      - {address: "a:2", tls: {ca_file: ca.pem, cert_file: cert.pem, key_file: key.pem, server_id: a.example.com}, token_file: token}
      - {address: "a:3", tls: {spiffe: {workload_api: "unix:/agent.sock"}, server_id: spiffe://example.com/a}}
`),
	} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stdout, stderr, status := runCommand(t, "check", "--config", "relay.yaml")
	if want := "warning: relay.yaml:4:36: listeners[2].tls.cert_file: old.pem has a certificate that expired at 2020-01-02T03:04:05Z\n"; status != 0 || stderr != want {
		t.Errorf("status %d, stderr\n%swant\n%s", status, stderr, want)
	}
	for _, want := range []string{
		"127.0.0.1:1 over grpc (v3, TLS);",
		"127.0.0.1:2 over grpc (v3, TLS with client certificates);",
		"127.0.0.1:3 over grpc (v3, TLS with client certificates or without);",
		"127.0.0.1:4 over grpc (v3, TLS by SPIFFE with client certificates);",
		"server a:1 (auto, TLS)",
		"server a:2 (auto, TLS to a.example.com, with a certificate, with a token)",
		"server a:3 (auto, TLS to spiffe://example.com/a, with an SVID)",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}
