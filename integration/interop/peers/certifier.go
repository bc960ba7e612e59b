package peers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Certifier signs certificates and tokens.
type Certifier struct {
	// Dir has the files that the certifier has written, ca.pem among them.
	Dir string
	// KeyID is the key id of its tokens.
	KeyID string

	t           testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewCertifier returns a certifier with a CA of its own.
func NewCertifier(t testing.TB) *Certifier {
	t.Helper()
	c := &Certifier{t: t, Dir: t.TempDir(), KeyID: "1"}
	c.certificate, c.key = c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)})
	c.write("ca.pem", "CERTIFICATE", c.certificate.Raw)
	return c
}

// CA returns the file with the certifier's own certificate.
func (c *Certifier) CA() string { return filepath.Join(c.Dir, "ca.pem") }

// Roots returns the certifier's own certificate, in PEM.
func (c *Certifier) Roots() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.certificate.Raw})
}

func (c *Certifier) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	parent, signer := c.certificate, c.key
	if parent == nil {
		parent, signer = template, key
	}
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		c.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return certificate, key
}

func (c *Certifier) write(name, kind string, der []byte) (file string) {
	c.t.Helper()
	file = filepath.Join(c.Dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return file
}

// Issue writes a certificate for clients, and for servers on 127.0.0.1 and the given hosts, and its key. An
// empty spiffeID is none.
func (c *Certifier) Issue(name, spiffeID string, notAfter time.Time, hosts ...string) (cert, key string) {
	c.t.Helper()
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: name}, // OpenSSL takes a certificate without a name for its own CA
		NotAfter: notAfter, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if spiffeID != "" {
		id, err := url.Parse(spiffeID)
		if err != nil {
			c.t.Fatal(err)
		}
		template.URIs = []*url.URL{id}
	}
	certificate, private := c.sign(template)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.write(name+".pem", "CERTIFICATE", certificate.Raw), c.write(name+"-key.pem", "PRIVATE KEY", der)
}

// KeySet returns the JSON Web Key Set that verifies the tokens of certifiers.
func KeySet(certifiers ...*Certifier) []byte {
	var keys []string
	for _, c := range certifiers {
		c.t.Helper()
		point, err := c.key.PublicKey.Bytes()
		if err != nil {
			c.t.Fatal(err)
		}
		encode := base64.RawURLEncoding.EncodeToString
		keys = append(keys, fmt.Sprintf(`{"kty": "EC", "crv": "P-256", "kid": %q, "x": %q, "y": %q}`, c.KeyID, encode(point[1:33]), encode(point[33:])))
	}
	return []byte(`{"keys": [` + strings.Join(keys, ", ") + `]}`)
}

// Keys writes the key set that verifies this certifier's tokens.
func (c *Certifier) Keys() (file string) {
	c.t.Helper()
	file = filepath.Join(c.Dir, "jwks.json")
	if err := os.WriteFile(file, KeySet(c), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return file
}

// Token issues a token of the issuer https://issuer for the audience xds-relay.
func (c *Certifier) Token(lifetime time.Duration) string {
	c.t.Helper()
	var parts []string
	for _, part := range []map[string]any{
		{"alg": "ES256", "kid": c.KeyID},
		{"iss": "https://issuer", "aud": "xds-relay", "sub": "client", "exp": time.Now().Add(lifetime).Unix()},
	} {
		text, err := json.Marshal(part)
		if err != nil {
			c.t.Fatal(err)
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(text))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ".")))
	r, s, err := ecdsa.Sign(rand.Reader, c.key, sum[:])
	if err != nil {
		c.t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return strings.Join(append(parts, base64.RawURLEncoding.EncodeToString(signature)), ".")
}
