package envoy

// Certificates, as secrets.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// identity is a CA and the certificate that it has issued, for servers and clients.
type identity struct {
	name     string // of the CA
	ca       *x509.Certificate
	cert     tls.Certificate
	caPEM    []byte
	chainPEM []byte
	keyPEM   []byte
}

// serverName is the name in all certificates.
const serverName = "shop.example"

func newIdentity(t testing.TB, name string) *identity {
	t.Helper()
	caKey, key := newKey(t), newKey(t)
	template := func() *x509.Certificate {
		serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
		if err != nil {
			t.Fatal(err)
		}
		return &x509.Certificate{SerialNumber: serial, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	}
	sign := func(of, parent *x509.Certificate, public *ecdsa.PublicKey) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, of, parent, public, caKey)
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return certificate
	}
	ca := template()
	ca.Subject, ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = pkix.Name{CommonName: name}, true, true, x509.KeyUsageCertSign
	ca = sign(ca, ca, &caKey.PublicKey)
	leaf := template()
	leaf.Subject, leaf.DNSNames, leaf.KeyUsage = pkix.Name{CommonName: serverName}, []string{serverName}, x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	leaf = sign(leaf, ca, &key.PublicKey)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &identity{
		name: name, ca: ca,
		cert:     tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
		caPEM:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}),
		chainPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}),
		keyPEM:   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// identity returns the identity of a name. All sides have the same.
func (s *side) identity(name string) *identity {
	s.Helper()
	if s.shared.identities[name] == nil {
		if s.shared.identities == nil {
			s.shared.identities = map[string]*identity{}
		}
		s.shared.identities[name] = newIdentity(s.shared.t, name)
	}
	return s.shared.identities[name]
}

// certificate returns a secret with a certificate.
func (i *identity) certificate(name string) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inlined(i.chainPEM), PrivateKey: inlined(i.keyPEM),
	}}}
}

// roots returns a secret with the CA.
func (i *identity) roots(name string) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
		TrustedCa: inlined(i.caPEM),
	}}}
}

func inlined(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}

// pool has the CAs of identities.
func pool(all ...*identity) *x509.CertPool {
	p := x509.NewCertPool()
	for _, i := range all {
		p.AddCert(i.ca)
	}
	return p
}
