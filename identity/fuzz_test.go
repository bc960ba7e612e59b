package identity_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// FuzzCertificate reads any bytes as the certificate of a client. Its SPIFFE ID is a valid one, the only URI of a
// certificate that signs no others, and the sum of its parts. Clients of different certificates have the same key only if
// they have proven the same.
func FuzzCertificate(f *testing.F) {
	ca := certtest.NewCA(f, "ca")
	own := ca.Issue(f, certtest.Options{CommonName: "own", DNSNames: []string{"a.example.org", "b.example.org"}}).TLS.Leaf
	for _, o := range []certtest.Options{
		{SPIFFEID: "spiffe://example.org/ns/pay/sa/gw"},
		{SPIFFEID: "spiffe://example.org", DNSNames: []string{"a.example.org"}},
		{CommonName: "own", DNSNames: []string{"a.example.org,b.example.org"}},
		{Change: func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: "gw", Organization: []string{`Pay, "Inc."`}}
		}},
		{SPIFFEID: "spiffe://example.org/a", Change: func(c *x509.Certificate) {
			c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		}},
	} {
		f.Add(ca.Issue(f, o).TLS.Leaf.Raw)
	}
	of := verified([]*x509.Certificate{own, ca.Certificate}).Connection()
	f.Fuzz(func(t *testing.T, der []byte) {
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			return
		}
		id := verified([]*x509.Certificate{leaf, ca.Certificate}).Connection()
		if !id.Authenticated() || id.Key() == "" || id.Expires.After(leaf.NotAfter) {
			t.Fatalf("%+v has the key %q", id, id.Key())
		}
		if id.SPIFFEID != "" {
			again, err := spiffeid.FromString(id.SPIFFEID)
			if err != nil || again.TrustDomain().Name() != id.TrustDomain || again.Path() != id.SPIFFEPath || id.SPIFFEID != "spiffe://"+id.TrustDomain+id.SPIFFEPath {
				t.Fatalf("%+v has a SPIFFE ID that reads as %v (%v)", id, again, err)
			}
			if len(leaf.URIs) != 1 || leaf.IsCA {
				t.Fatalf("%q is of a certificate with %v that signs: %t", id.SPIFFEID, leaf.URIs, leaf.IsCA)
			}
		}
		same := id.SPIFFEID == "" && id.Subject == of.Subject && slices.Equal(id.DNSNames, of.DNSNames)
		if (id.Key() == of.Key()) != same {
			t.Fatalf("%+v and %+v have the keys %q and %q", id, of, id.Key(), of.Key())
		}
	})
}

// FuzzAuthorization sends any header. There is at most one token, without white space around it, and it is a part of what
// was sent under the scheme Bearer.
func FuzzAuthorization(f *testing.F) {
	f.Add("Bearer abc", "Basic def")
	f.Add("bearer  abc ", "Bearer def")
	f.Add("Bearer", "")
	f.Fuzz(func(t *testing.T, one, other string) {
		token, err := identity.Proof{Authorization: []string{one, other}}.Token()
		bearers := 0
		for _, header := range []string{one, other} {
			if scheme, _, _ := strings.Cut(header, " "); strings.EqualFold(scheme, "bearer") {
				bearers++
			}
		}
		switch {
		case err != nil && (token != "" || bearers == 0), err == nil && (token != "") != (bearers == 1), bearers > 1 && err == nil:
			t.Fatalf("%q and %q are the token %q (%v)", one, other, token, err)
		case token != strings.TrimSpace(token), !strings.HasSuffix(strings.TrimSpace(one), token) && !strings.HasSuffix(strings.TrimSpace(other), token):
			t.Fatalf("%q and %q are the token %q", one, other, token)
		}
	})
}
