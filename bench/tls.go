package main

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
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// u: mutual TLS, in the relay and in the floor.

func mutualTLS() []scenario {
	overTLS := func(id, title string, resume bool, run func(*bench, string, *Spec) []metric) scenario {
		return of(id, title, ours, func(b *bench, system string) []metric {
			folder := must(os.MkdirTemp("", "xds-relay-bench"))
			defer os.RemoveAll(folder)
			writeCertificates(folder)
			return run(b, system, &Spec{Delta: true, Resources: 100, Size: 1 << 10, PerClient: 100, Certificates: folder, Resume: resume})
		})
	}
	return []scenario{
		overTLS("u1", "mTLS: one of 100 shared resources of 1 KB changes, 1,000 clients, delta", false, (*bench).updatesOverTLS),
		overTLS("u2", "mTLS: 5,000 clients come at once, each on its connection, for 100 names; all come back", false, (*bench).herdOverTLS),
		overTLS("u3", "mTLS with session resumption: 5,000 clients come at once, each on its connection, for 100 names; all come back", true, (*bench).herdOverTLS),
	}
}

func (b *bench) updatesOverTLS(system string, spec *Spec) []metric {
	clients, n := b.scale(1000, 200), b.scale(20, 10)
	s := b.beginWarm(system, spec, command{Clients: clients, PerConn: 1})
	cpu, _, last := s.updates(n)
	return []metric{
		{"CPU per message", "µs", micros(cpu, n*clients)},
		{"last client", "ms", millis(middle(last))},
		{"memory per client", "KiB", s.perClient(s.rest)},
	}
}

func (b *bench) herdOverTLS(system string, spec *Spec) []metric {
	clients := b.scale(5000, 500)
	s := b.beginWarm(system, spec, command{Clients: clients, PerConn: 1, AtOnce: true})
	out := []metric{
		{"come: CPU per client", "µs", micros(s.coldCPU, clients)},
		{"come: last client", "ms", millis(s.coldLast)},
		{"memory per client", "KiB", s.perClient(s.rest)},
	}
	s.comeBack(command{Clients: clients, PerConn: 1, AtOnce: true})
	return append(out,
		metric{"come back: CPU per client", "µs", micros(s.coldCPU, clients)},
		metric{"come back: last client", "ms", millis(s.coldLast)},
	)
}

// The files in a folder of certificates.
const (
	caFile                      = "ca.pem"
	serverCertFile, serverKey   = "server.pem", "server-key.pem"
	clientCertFile, clientKey   = "client.pem", "client-key.pem"
	serverName                  = "localhost"
	relayTLS                    = `, tls: {cert_file: "%s", key_file: "%s", client_ca_file: "%s"}`
	certificateAge, sessionsMax = 24 * time.Hour, 100_000
)

func writeCertificates(folder string) {
	ca, caKey := certify(folder, caFile, "", &x509.Certificate{
		Subject: pkix.Name{CommonName: "bench"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	certify(folder, serverCertFile, serverKey, &x509.Certificate{
		DNSNames: []string{serverName}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca, caKey)
	certify(folder, clientCertFile, clientKey, &x509.Certificate{
		Subject:  pkix.Name{CommonName: "client"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, caKey)
}

// certify writes a certificate, and its key unless keyFile is empty. Without a parent it signs
// itself.
func certify(folder, certFile, keyFile string, c, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	if parent == nil {
		parent, parentKey = c, key
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(certificateAge)
	der := must(x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey))
	check(writePEM(filepath.Join(folder, certFile), "CERTIFICATE", der))
	if keyFile != "" {
		check(writePEM(filepath.Join(folder, keyFile), "EC PRIVATE KEY", must(x509.MarshalECPrivateKey(key))))
	}
	return must(x509.ParseCertificate(der)), key
}

func writePEM(path, kind string, bytes []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600)
}

func (s *Spec) file(name string) string { return filepath.Join(s.Certificates, name) }

// serverCredentials are the credentials of a server of ours.
func (s *Spec) serverCredentials() (credentials.TransportCredentials, error) {
	if s.Certificates == "" {
		return insecure.NewCredentials(), nil
	}
	config, err := s.tlsConfig(serverCertFile, serverKey)
	if err != nil {
		return nil, err
	}
	config.ClientCAs, config.ClientAuth = config.RootCAs, tls.RequireAndVerifyClientCert
	return credentials.NewTLS(config), nil
}

// clientCredentials are those of all clients of a swarm.
func (s *Spec) clientCredentials() (credentials.TransportCredentials, error) {
	if s.Certificates == "" {
		return insecure.NewCredentials(), nil
	}
	config, err := s.tlsConfig(clientCertFile, clientKey)
	if err != nil {
		return nil, err
	}
	config.ServerName = serverName
	if s.Resume {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(sessionsMax)
	}
	return credentials.NewTLS(config), nil
}

func (s *Spec) tlsConfig(certFile, keyFile string) (*tls.Config, error) {
	roots := x509.NewCertPool()
	text, err := os.ReadFile(s.file(caFile))
	if err != nil {
		return nil, err
	}
	roots.AppendCertsFromPEM(text)
	pair, err := tls.LoadX509KeyPair(s.file(certFile), s.file(keyFile))
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12}, err
}

// relayTLS returns the relay's key for TLS, empty for plaintext.
func (s *Spec) relayTLS() string {
	if s.Certificates == "" {
		return ""
	}
	return fmt.Sprintf(relayTLS, s.file(serverCertFile), s.file(serverKey), s.file(caFile))
}
