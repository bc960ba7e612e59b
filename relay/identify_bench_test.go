package relay

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// BenchmarkIdentify measures what an identity adds to the start of a stream.
func BenchmarkIdentify(b *testing.B) {
	cfg, err := configs.Parse("relay.yaml", []byte(`
listeners: [{address: "127.0.0.1:0", admit: 'identity.trust_domain == "example.org"'}]
authorities: [{name: a, directory: .}]
`))
	if err != nil {
		b.Fatal(err)
	}
	ca := certtest.NewCA(b, "ca")
	leaf := ca.Issue(b, certtest.Options{SPIFFEID: "spiffe://example.org/ns/pay/sa/gw"}).TLS.Leaf
	p := identity.Proof{Peer: &grpcpeer.Peer{Addr: &net.TCPAddr{}, AuthInfo: credentials.TLSInfo{
		State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf, ca.Certificate}}},
	}}}
	for name, i := range map[string]*identifier{
		"certificate": {listener: &configs.Listener{}, ends: true},
		"and admit":   {listener: &cfg.Listeners[0], ends: true},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := i.identify(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
