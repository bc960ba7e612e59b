package integration

// Certificates in files, laid out as Kubernetes mounts a Secret.

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// issued returns a certificate with this common name, for servers on 127.0.0.1 and for clients.
func issued(t testing.TB, ca *certtest.CA, name string) *certtest.Pair {
	t.Helper()
	o := certtest.Loopback
	o.CommonName = name
	return ca.Issue(t, o)
}

// pool returns the CAs as a pool of trusted roots.
func pool(cas ...*certtest.CA) *x509.CertPool {
	p := x509.NewCertPool()
	for _, ca := range cas {
		p.AddCert(ca.Certificate)
	}
	return p
}

// mounted imitates a Secret that Kubernetes has mounted. Its files are symlinks into ..data, which is itself
// a symlink. An update replaces ..data.
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

// update replaces the files in the map and keeps all others.
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
