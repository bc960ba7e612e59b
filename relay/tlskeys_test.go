package relay

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"testing"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// The keys of `tls` determine the configurations of handshakes.
func TestHandshakesAreAsTheConfigurationSays(t *testing.T) {
	dir, ca := t.TempDir(), certtest.NewCA(t, "ca")
	pair := ca.Issue(t, certtest.Loopback)
	own := fmt.Sprintf("cert_file: %s, key_file: %s", writeFile(t, dir, "cert.pem", pair.Cert), writeFile(t, dir, "key.pem", pair.Key))
	roots := writeFile(t, dir, "ca.pem", certtest.PEM(ca))
	credentials := certs.NewStore(slog.New(slog.DiscardHandler)).Part()
	defer credentials.Store.Close()
	parse := func(listener, server string) (*configs.Listener, *configs.Server) {
		t.Helper()
		cfg, err := configs.Parse("relay.yaml", fmt.Appendf(nil, `
listeners: [{address: "127.0.0.1:0", tls: {%s}}]
authorities: [{name: a, servers: [{address: "cp.example.com:443", tls: {%s}}]}]
`, listener, server))
		if err != nil {
			t.Fatal(err)
		}
		return &cfg.Listeners[0], &cfg.Authorities[0].Servers[0]
	}
	for _, tt := range []struct {
		keys string
		auth tls.ClientAuthType
		min  uint16
	}{
		{"", tls.NoClientCert, tls.VersionTLS12},
		{", min_version: '1.3'", tls.NoClientCert, tls.VersionTLS13},
		{", client_ca_file: " + roots, tls.RequireAndVerifyClientCert, tls.VersionTLS12},
		{", client_certificates: require, client_ca_file: " + roots, tls.RequireAndVerifyClientCert, tls.VersionTLS12},
		{", client_certificates: optional, client_ca_file: " + roots, tls.VerifyClientCertIfGiven, tls.VersionTLS12},
	} {
		l, _ := parse(own+tt.keys, "")
		config, err := listenerTLS(credentials, l)
		if err != nil {
			t.Fatal(err)
		}
		if config, err = config.GetConfigForClient(&tls.ClientHelloInfo{}); err != nil {
			t.Fatal(err)
		}
		if config.ClientAuth != tt.auth || config.MinVersion != tt.min || len(config.Certificates) != 1 {
			t.Errorf("a listener with%s has %v and at least %s, want %v and %s", tt.keys, config.ClientAuth, tls.VersionName(config.MinVersion), tt.auth, tls.VersionName(tt.min))
		}
	}
	for _, tt := range []struct {
		keys, name  string
		min         uint16
		certificate bool
	}{
		{"", "", tls.VersionTLS12, false},
		{"min_version: '1.3'", "", tls.VersionTLS13, false},
		{"server_name: istiod", "istiod", tls.VersionTLS12, false},
		{own, "", tls.VersionTLS12, true},
	} {
		_, s := parse(own, tt.keys)
		config, err := serverTLS(credentials, s)
		if err != nil {
			t.Fatal(err)
		}
		if config.ServerName != tt.name || config.MinVersion != tt.min || (config.GetClientCertificate != nil) != tt.certificate {
			t.Errorf("towards a server with %s: name %q, at least %s, a certificate %t", tt.keys, config.ServerName, tls.VersionName(config.MinVersion), config.GetClientCertificate != nil)
		}
	}
}
