// Package certtest makes certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"
)

// CA signs certificates.
type CA struct {
	Certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewCA returns a CA of that name.
func NewCA(t testing.TB, name string) *CA {
	t.Helper()
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(24 * time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key := newKey(t)
	return &CA{Certificate: sign(t, template, nil, key, key), key: key}
}

// Pool returns the CA as roots.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate)
	return pool
}

// PEM returns the content of a file with the certificates of CAs.
func PEM(cas ...*CA) (file []byte) {
	for _, ca := range cas {
		file = append(file, encode("CERTIFICATE", ca.Certificate.Raw)...)
	}
	return file
}

// Options describe a certificate. Without NotAfter it is valid for an hour.
type Options struct {
	CommonName string
	SPIFFEID   string
	DNSNames   []string
	IPs        []net.IP
	NotAfter   time.Time
	// Change, if not nil, modifies the certificate before it is signed.
	Change func(*x509.Certificate)
}

// Loopback are the options of a server on 127.0.0.1.
var Loopback = Options{IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}

// Pair is a certificate with its key, both also in the form of their files.
type Pair struct {
	Cert, Key []byte // PEM
	TLS       tls.Certificate

	keyDER []byte // PKCS #8
}

// Issue returns a certificate that the CA has signed, for servers and clients.
func (ca *CA) Issue(t testing.TB, o Options) *Pair {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: o.CommonName}, DNSNames: o.DNSNames, IPAddresses: o.IPs,
		NotAfter:    o.NotAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if o.SPIFFEID != "" {
		id, err := url.Parse(o.SPIFFEID)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = []*url.URL{id}
	}
	if o.Change != nil {
		o.Change(template)
	}
	key := newKey(t)
	leaf := sign(t, template, ca.Certificate, key, ca.key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &Pair{
		Cert: encode("CERTIFICATE", leaf.Raw), Key: encode("PRIVATE KEY", der),
		TLS:    tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
		keyDER: der,
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

// sign signs a certificate for key. Without a parent, the certificate is self-signed.
func sign(t testing.TB, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
