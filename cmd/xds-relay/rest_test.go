package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// writeCertificate makes cert.pem and key.pem in the working directory: a
// certificate for 127.0.0.1 that is its own root.
func writeCertificate(t *testing.T) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	for name, text := range map[string][]byte{"cert.pem": certPEM, "key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyBytes})} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	return roots
}

// A REST listener takes TLS as the others do, with HTTP/1.1 or HTTP/2 as the
// client likes, and clients' certificates if it is to.
func TestRESTOverTLS(t *testing.T) {
	const config = `listeners:
  - address: 127.0.0.1:0
    protocol: rest
    long_poll: 1s
    max_request_bytes: 1KiB
    tls: {cert_file: cert.pem, key_file: key.pem, client_ca_file: cert.pem}
authorities:
  - name: onprem
    directory: resources
old_style_names:
  - when: node.cluster == ""
    authority: onprem
`
	inFolder(t, map[string]string{"relay.yaml": config, "resources/cart.yaml": cartYAML})
	roots := writeCertificate(t)
	server, stop := startServe(t, "relay.yaml")
	pair, err := tls.LoadX509KeyPair("cert.pem", "key.pem")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name         string
		http1, http2 bool
		certificates []tls.Certificate
		body, want   string
		status       int
	}{
		{"HTTP/2", true, true, []tls.Certificate{pair}, `{}`, `"name":"cart"`, http.StatusOK},
		{"HTTP/1.1", true, false, []tls.Certificate{pair}, `{}`, `"name":"cart"`, http.StatusOK},
		{"more than the listener takes", true, true, []tls.Certificate{pair}, strings.Repeat(" ", 2000), "max_request_bytes is 1024", http.StatusRequestEntityTooLarge},
		{"a client that no rule matches", true, true, []tls.Certificate{pair}, `{"node": {"cluster": "x"}}`,
			`no rule of old_style_names matches node`, http.StatusBadRequest},
		{"without a certificate", true, true, nil, `{}`, "", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			transport := &http.Transport{
				Protocols:       new(http.Protocols),
				TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: test.certificates, MinVersion: tls.VersionTLS12},
			}
			defer transport.CloseIdleConnections()
			transport.Protocols.SetHTTP1(test.http1)
			transport.Protocols.SetHTTP2(test.http2)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("https://%s/v3/discovery:clusters", server), strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := transport.RoundTrip(req)
			if err != nil {
				if test.status != 0 {
					t.Error(err)
				}
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			// protojson puts spaces where it likes.
			if text := strings.ReplaceAll(string(body), `": "`, `":"`); resp.StatusCode != test.status || !strings.Contains(text, test.want) || (resp.ProtoMajor == 2) != test.http2 {
				t.Errorf("got %s %s: %s", resp.Proto, resp.Status, body)
			}
		})
	}
	if log, status := stop(); status != 0 || !strings.Contains(log, "protocol=rest") {
		t.Errorf("status %d, log\n%s", status, log)
	}
}
