package integration

// Certificates of CAs, in files as Kubernetes mounts a Secret.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certificateAuthority signs certificates.
type certificateAuthority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newCA(t testing.TB, name string) *certificateAuthority {
	t.Helper()
	key := newKey(t)
	return &certificateAuthority{key: key, certificate: signed(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, key, key)}
}

// issued is a certificate with its key.
type issued struct {
	tls       tls.Certificate
	cert, key []byte // PEM
}

// issue signs a certificate for servers on 127.0.0.1, and for clients.
func (ca *certificateAuthority) issue(t testing.TB, name string) *issued {
	t.Helper()
	key := newKey(t)
	leaf := signed(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca.certificate, key, ca.key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &issued{
		tls:  tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
		cert: pemOf("CERTIFICATE", leaf.Raw), key: pemOf("PRIVATE KEY", der),
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

func signed(t testing.TB, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
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

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// trust returns the file of CAs.
func trust(cas ...*certificateAuthority) (file []byte) {
	for _, ca := range cas {
		file = append(file, pemOf("CERTIFICATE", ca.certificate.Raw)...)
	}
	return file
}

// pool returns the certificates of CAs.
func pool(cas ...*certificateAuthority) *x509.CertPool {
	p := x509.NewCertPool()
	for _, ca := range cas {
		p.AddCert(ca.certificate)
	}
	return p
}

// mounted is a Secret that Kubernetes has mounted: its files are symlinks into ..data, which is
// a symlink that is replaced as a whole.
type mounted struct {
	dir        string
	files      map[string][]byte
	generation int
}

func mount(t testing.TB, files map[string][]byte) *mounted {
	t.Helper()
	m := &mounted{dir: t.TempDir(), files: map[string][]byte{}}
	m.update(t, files)
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), m.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *mounted) path(name string) string { return filepath.Join(m.dir, name) }

// update replaces files. The others stay.
func (m *mounted) update(t testing.TB, files map[string][]byte) {
	t.Helper()
	for name, data := range files {
		m.files[name] = data
	}
	old := m.path(fmt.Sprint("..", m.generation))
	m.generation++
	version := fmt.Sprint("..", m.generation)
	if err := os.Mkdir(m.path(version), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range m.files {
		if err := os.WriteFile(filepath.Join(m.path(version), name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(version, m.path("..data_tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(m.path("..data_tmp"), m.path("..data")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(old); err != nil {
		t.Fatal(err)
	}
}
