package main

// Who reaches the admin listener of the binary.

import (
	"bufio"
	"context"
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
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// startOperator runs a relay with a configuration of `admin`, until the test ends.
func startOperator(t *testing.T, admin string) (address string) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "relay.yaml")
	text := "listeners: [{address: '127.0.0.1:0'}]\nauthorities: [{name: a, directory: .}]\nadmin: " + admin
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx, []string{"serve", "--config", config}, io.Discard, writer)
		writer.Close()
	}()
	t.Cleanup(func() { cancel(); <-ended })
	for log := bufio.NewScanner(reader); log.Scan(); {
		if m := regexp.MustCompile(`msg="serving the operator" address=(\S+)`).FindStringSubmatch(log.Text()); m != nil {
			address = m[1]
		}
		if address != "" && strings.Contains(log.Text(), "msg=ready ") {
			go func() { _, _ = io.Copy(io.Discard, reader) }()
			return address
		}
	}
	t.Fatal("the relay does not serve the operator")
	return ""
}

// operatorCertificates makes a CA, and certificates of the listener and of an operator, in
// files of the working folder.
func operatorCertificates(t *testing.T) {
	t.Helper()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	write := func(file, kind string, der []byte, err error) {
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	write("ca.pem", "CERTIFICATE", der, err)
	for i, name := range []string{"admin", "operator"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(int64(2 + i)), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name + ".example.com"},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
		write(name+".pem", "CERTIFICATE", der, err)
		der, err = x509.MarshalECPrivateKey(key)
		write(name+"-key.pem", "EC PRIVATE KEY", der, err)
	}
}

func ask(t *testing.T, client *http.Client, url, host string) (status int, body string, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func TestOperatorsNeedACertificateOverTLS(t *testing.T) {
	t.Chdir(t.TempDir())
	operatorCertificates(t)
	address := startOperator(t, "{address: '127.0.0.1:0', tls: {cert_file: admin.pem, key_file: admin-key.pem, client_ca_file: ca.pem}}")

	pool := x509.NewCertPool()
	ca, err := os.ReadFile("ca.pem")
	if err != nil || !pool.AppendCertsFromPEM(ca) {
		t.Fatal(err)
	}
	clientOf := func(certificates ...tls.Certificate) *http.Client {
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: certificates, MinVersion: tls.VersionTLS12}}
		return &http.Client{Transport: transport}
	}
	pair, err := tls.LoadX509KeyPair("operator.pem", "operator-key.pem")
	if err != nil {
		t.Fatal(err)
	}
	operator := clientOf(pair)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/clients", "/authorities", "/"} {
		if status, body, err := ask(t, operator, "https://"+address+path, ""); err != nil || status != http.StatusOK {
			t.Errorf("%s: an operator with a certificate gets %d %s, %v", path, status, body, err)
		}
		if status, body, err := ask(t, clientOf(), "https://"+address+path, ""); err == nil {
			t.Errorf("%s: somebody without a certificate gets %d %s", path, status, body)
		}
		if status, _, err := ask(t, operator, "http://"+address+path, ""); err == nil && status == http.StatusOK {
			t.Errorf("%s is served in plaintext", path)
		}
	}
	for host, want := range map[string]int{"admin.example.com": http.StatusOK, "evil.example": http.StatusForbidden} {
		if status, body, err := ask(t, operator, "https://"+address+"/clients", host); err != nil || status != want {
			t.Errorf("a request for %s gets %d %s, %v", host, status, body, err)
		}
	}
}

func TestOperatorsConnectOverAUnixSocket(t *testing.T) {
	folder := t.TempDir()
	for _, tt := range []struct {
		mode string
		want os.FileMode
	}{{"", 0o600}, {", mode: '0660'", 0o660}} {
		socket := filepath.Join(folder, fmt.Sprintf("%o.sock", tt.want))
		// A socket that nobody accepts from is of a relay that was killed.
		stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		stale.SetUnlinkOnClose(false)
		if err := stale.Close(); err != nil {
			t.Fatal(err)
		}
		if address := startOperator(t, fmt.Sprintf("{address: 'unix:%s'%s}", socket, tt.mode)); address != "unix:"+socket {
			t.Errorf("the relay serves the operator on %s", address)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}}}
		if status, body, err := ask(t, client, "http://relay/readyz", ""); err != nil || status != http.StatusOK {
			t.Errorf("got %d %s, %v", status, body, err)
		}
		info, err := os.Stat(socket)
		if err != nil || info.Mode().Perm() != tt.want {
			t.Errorf("%s has mode %v, want %v: %v", socket, info.Mode().Perm(), tt.want, err)
		}
		config := fmt.Sprintf("admin.address=unix:%s", socket)
		if _, stderr, status := runCommand(t, "serve", "--listen", "127.0.0.1:0", "--set", config); status == 0 || !strings.Contains(stderr, "is the socket of another process") {
			t.Errorf("a second relay takes the socket: status %d, %s", status, stderr)
		}
	}
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, status := runCommand(t, "serve", "--listen", "127.0.0.1:0", "--admin", "unix:"+file)
	if content, err := os.ReadFile(file); status == 0 || !strings.Contains(stderr, "exists and is not a socket") || string(content) != "content" {
		t.Errorf("a file in the place of the socket: status %d, %s, %q, %v", status, stderr, content, err)
	}
}

func TestTheRelayDoesNotStartWithAnOperatorForEverybody(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
		_, stderr, status := runCommand(t, "serve", "--listen", "127.0.0.1:0", "--admin", address)
		if status == 0 || !strings.Contains(stderr, "--admin: admin.address: ") || !strings.Contains(stderr, "want a loopback address such as 127.0.0.1:19000, unix:/path, or admin.tls") {
			t.Errorf("%s: status %d, %s", address, status, stderr)
		}
	}
}
