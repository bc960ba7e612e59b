package identity_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"reflect"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// shown is what a client has shown on its connection.
func shown(state tls.ConnectionState) identity.Proof {
	address := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
	return identity.Proof{Peer: &peer.Peer{Addr: address, AuthInfo: credentials.TLSInfo{State: state}}}
}

func verified(chains ...[]*x509.Certificate) identity.Proof {
	return shown(tls.ConnectionState{VerifiedChains: chains, PeerCertificates: chains[0]})
}

// uris returns a change that gives a certificate these URIs.
func uris(t *testing.T, texts ...string) func(*x509.Certificate) {
	t.Helper()
	parsed := make([]*url.URL, len(texts))
	for i, text := range texts {
		var err error
		if parsed[i], err = url.Parse(text); err != nil {
			t.Fatal(err)
		}
	}
	return func(c *x509.Certificate) { c.URIs = parsed }
}

func TestACertificateProvesWhatIsInIt(t *testing.T) {
	ca := certtest.NewCA(t, "ca")
	for _, tt := range []struct {
		name   string
		change func(*x509.Certificate)
		want   identity.Identity
	}{
		{"a SPIFFE ID", uris(t, "spiffe://example.org/ns/pay/sa/gw"),
			identity.Identity{SPIFFEID: "spiffe://example.org/ns/pay/sa/gw", TrustDomain: "example.org", SPIFFEPath: "/ns/pay/sa/gw"}},
		{"a trust domain", uris(t, "spiffe://example.org"),
			identity.Identity{SPIFFEID: "spiffe://example.org", TrustDomain: "example.org"}},
		{"names", func(c *x509.Certificate) {
			c.DNSNames = []string{"a.example.org", "b.example.org"}
			c.Subject = pkix.Name{CommonName: "gw", Organization: []string{"Pay, Inc."}}
		}, identity.Identity{DNSNames: []string{"a.example.org", "b.example.org"}, Subject: `CN=gw,O=Pay\, Inc.`}},
		{"two SPIFFE IDs", uris(t, "spiffe://example.org/a", "spiffe://example.org/b"), identity.Identity{}},
		{"a SPIFFE ID and another URI", uris(t, "https://example.org/", "spiffe://example.org/b"), identity.Identity{}},
		{"a URI of another scheme", uris(t, "https://example.org/a"), identity.Identity{}},
		{"a SPIFFE ID with a port", uris(t, "spiffe://example.org:80/a"), identity.Identity{}},
		{"a SPIFFE ID with dots", uris(t, "spiffe://example.org/a/../b"), identity.Identity{}},
		{"a SPIFFE ID with an escape", uris(t, "spiffe://example.org/%61"), identity.Identity{}},
		{"a SPIFFE ID with a query", uris(t, "spiffe://example.org/a?b"), identity.Identity{}},
		{"a SPIFFE ID of a certificate that signs", func(c *x509.Certificate) {
			uris(t, "spiffe://example.org/a")(c)
			c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		}, identity.Identity{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leaf := ca.Issue(t, certtest.Options{Change: tt.change}).TLS.Leaf
			got := *verified([]*x509.Certificate{leaf, ca.Certificate}).Connection()
			if !got.Expires.Equal(leaf.NotAfter) {
				t.Errorf("expires at %v, want %v", got.Expires, leaf.NotAfter)
			}
			tt.want.Source = identity.MTLS
			// The moments of the certificate are tested below.
			tt.want.Expires = got.Expires
			identity.ForgetLifetime(&got)
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestACertificateThatNobodyHasVerifiedProvesNothing(t *testing.T) {
	leaf := certtest.NewCA(t, "ca").Issue(t, certtest.Options{SPIFFEID: "spiffe://example.org/a"}).TLS.Leaf
	got := shown(tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}).Connection()
	if !reflect.DeepEqual(got, &identity.Identity{Source: identity.None}) {
		t.Errorf("got %+v", got)
	}
}

// A chain is good until the first of its certificates expires, a client until the last of its
// chains is.
func TestAnIdentityExpiresWithItsChain(t *testing.T) {
	ca := certtest.NewCA(t, "ca")
	now := time.Now().Truncate(time.Second).UTC()
	until := func(d time.Duration) *x509.Certificate {
		return ca.Issue(t, certtest.Options{NotAfter: now.Add(d)}).TLS.Leaf
	}
	leaf, soon, late := until(3*time.Hour), until(time.Hour), until(2*time.Hour)
	for _, tt := range []struct {
		name   string
		chains [][]*x509.Certificate
		want   time.Duration
	}{
		{"the leaf is the first", [][]*x509.Certificate{{soon, leaf}}, time.Hour},
		{"an intermediate is the first", [][]*x509.Certificate{{leaf, soon, late}}, time.Hour},
		{"another chain lasts longer", [][]*x509.Certificate{{leaf, soon}, {leaf, late}}, 2 * time.Hour},
	} {
		id := verified(tt.chains...).Connection()
		if got := id.Expires; !got.Equal(now.Add(tt.want)) {
			t.Errorf("%s: got %v, want %v", tt.name, got.Sub(now), tt.want)
		}
		if id.Expired(now.Add(tt.want-time.Second)) || !id.Expired(now.Add(tt.want)) {
			t.Errorf("%s: it is not expired from that moment on", tt.name)
		}
	}
}
