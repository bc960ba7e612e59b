package configs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
	whole, err := os.ReadFile("cert.pem")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, "half.pem", append(whole, whole[:len(whole)/2]...))
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
        token_file: none
      - address: a:2
        tls: {ca_file: half.pem}
        token_file: cert.pem
      - address: a:3
        tls: {}
        token_file: empty.pem
  - name: b
    directory: none
  - name: c
    directory: cert.pem
  - name: d
    directory: .
`)
	err = c.CheckFiles()
	want := `relay.yaml:6:7: listeners[0].tls.key_file: open none.pem: no such file or directory
relay.yaml:7:7: listeners[0].tls.client_ca_file: empty.pem has no certificates (want PEM)
relay.yaml:9:11: listeners[1].tls.cert_file: cert.pem and cert.pem are not a certificate and its key: tls: found a certificate rather than a key in the PEM for the private key
relay.yaml:15:11: authorities[0].servers[0].tls.ca_file: open none.pem: no such file or directory
relay.yaml:16:11: authorities[0].servers[0].tls.cert_file: open none.pem: no such file or directory
relay.yaml:18:9: authorities[0].servers[0].token_file: open none: no such file or directory
relay.yaml:20:15: authorities[0].servers[1].tls.ca_file: half.pem ends in the middle of a certificate (want PEM)
relay.yaml:21:9: authorities[0].servers[1].token_file: cert.pem is not a bearer token (want letters, digits and -._~+/= only)
relay.yaml:24:9: authorities[0].servers[2].token_file: empty.pem is empty (want a bearer token)`
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
	writeFile(t, "token", []byte("eyJh.eyJz-_.sig=\n"))
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
        token_file: token
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
}
