package configs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"testing"
	"time"
)

// writeCertificate makes cert.pem and key.pem, a self-signed certificate and
// its key, in the working directory.
func writeCertificate(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, "cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	writeFile(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyBytes}))
}

func writeFile(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestUnusableFilesAreErrorsWithTheirPlace(t *testing.T) {
	t.Chdir(t.TempDir())
	writeCertificate(t)
	writeFile(t, "empty.pem", nil)
	c := mustParse(t, `
listeners:
  - address: :18000
    tls:
      cert_file: cert.pem
      key_file: none.pem
      client_ca_file: empty.pem
  - address: :18001
    tls: {cert_file: cert.pem, key_file: cert.pem}
authorities:
  - name: a
    servers:
      - address: a:1
        tls:
          ca_file: none.pem
          cert_file: none.pem
          key_file: key.pem
  - name: b
    directory: none
  - name: c
    directory: cert.pem
  - name: d
    directory: .
`)
	err := c.CheckFiles()
	want := `relay.yaml:6:7: listeners[0].tls.key_file: open none.pem: no such file or directory
relay.yaml:7:7: listeners[0].tls.client_ca_file: empty.pem has no certificates (want PEM)
relay.yaml:9:11: listeners[1].tls.cert_file: cert.pem and cert.pem are not a certificate and its key: tls: found a certificate rather than a key in the PEM for the private key
relay.yaml:15:11: authorities[0].servers[0].tls.ca_file: open none.pem: no such file or directory
relay.yaml:16:11: authorities[0].servers[0].tls.cert_file: open none.pem: no such file or directory`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

func TestFilesThatCanBeUsed(t *testing.T) {
	t.Chdir(t.TempDir())
	writeCertificate(t)
	c := mustParse(t, `
listeners:
  - address: :18000
    tls: {cert_file: cert.pem, key_file: key.pem, client_ca_file: cert.pem}
  - address: :18001
    tls: {cert_file: cert.pem, key_file: key.pem}
authorities:
  - name: a
    servers:
      - address: a:1
        tls: {ca_file: cert.pem, cert_file: cert.pem, key_file: key.pem, server_name: cp}
  - name: b
    servers:
      - address: b:1
        tls: {}
  - name: c
    directory: .
`)
	if err := c.CheckFiles(); err != nil {
		t.Error(err)
	}

	mutual, err := c.Listeners[0].TLS.Load()
	if err != nil || len(mutual.Certificates) != 1 || mutual.ClientCAs == nil || mutual.ClientAuth != tls.RequireAndVerifyClientCert {
		t.Errorf("mutual TLS to clients: got %+v, %v", mutual, err)
	}
	plain, err := c.Listeners[1].TLS.Load()
	if err != nil || len(plain.Certificates) != 1 || plain.ClientAuth != tls.NoClientCert {
		t.Errorf("TLS to clients: got %+v, %v", plain, err)
	}
	pinned, err := c.Authorities[0].Servers[0].TLS.Load()
	if err != nil || len(pinned.Certificates) != 1 || pinned.RootCAs == nil || pinned.ServerName != "cp" {
		t.Errorf("mutual TLS to a server: got %+v, %v", pinned, err)
	}
	system, err := c.Authorities[1].Servers[0].TLS.Load()
	if err != nil || system.Certificates != nil || system.RootCAs != nil || system.ServerName != "" {
		t.Errorf("TLS to a server: got %+v, %v", system, err)
	}
}
