package configs

// This file is TLS, towards clients and towards servers.

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// ListenerTLS is TLS towards clients. Files are PEM, and relative to the
// folder in which the relay is started.
type ListenerTLS struct {
	// The server's certificate.
	CertFile string `yaml:"cert_file" required:"true"`
	// The key of `cert_file`.
	KeyFile string `yaml:"key_file" required:"true"`
	// The roots of client certificates. If given, clients have to show a certificate that one
	// of them has signed.
	ClientCAFile string `yaml:"client_ca_file" absent:"clients need no certificate"`
}

// ServerTLS is TLS towards a server. An empty one trusts the system's roots.
// Files are PEM, and relative to the folder in which the relay is started.
type ServerTLS struct {
	// The roots to trust.
	CAFile string `yaml:"ca_file" absent:"the system's roots"`
	// The certificate that the relay shows to the server, with `key_file`.
	CertFile string `yaml:"cert_file" absent:"none"`
	// The key of `cert_file`.
	KeyFile string `yaml:"key_file" absent:"none"`
	// The name in the server's certificate.
	ServerName string `yaml:"server_name" absent:"the host of the address"`
}

// Load reads the files of t. The error is an Errors with the keys as paths.
func (t *ListenerTLS) Load() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	var errs Errors
	config.Certificates, errs = loadCertificate(t.CertFile, t.KeyFile)
	if t.ClientCAFile != "" {
		roots, err := loadRoots(t.ClientCAFile)
		if err != nil {
			errs = append(errs, Error{Path: "client_ca_file", Err: err})
		}
		config.ClientCAs, config.ClientAuth = roots, tls.RequireAndVerifyClientCert
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return config, nil
}

// Load reads the files of t. The error is an Errors with the keys as paths.
func (t *ServerTLS) Load() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	var errs Errors
	if t.CAFile != "" {
		roots, err := loadRoots(t.CAFile)
		if err != nil {
			errs = append(errs, Error{Path: "ca_file", Err: err})
		}
		config.RootCAs = roots
	}
	if t.CertFile != "" {
		certificates, certErrs := loadCertificate(t.CertFile, t.KeyFile)
		config.Certificates, errs = certificates, append(errs, certErrs...)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return config, nil
}

func loadRoots(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificates (want PEM)", file)
	}
	return roots, nil
}

func loadCertificate(certFile, keyFile string) ([]tls.Certificate, Errors) {
	cert, certErr := os.ReadFile(certFile)
	key, keyErr := os.ReadFile(keyFile)
	var errs Errors
	if certErr != nil {
		errs = append(errs, Error{Path: "cert_file", Err: certErr})
	}
	if keyErr != nil {
		errs = append(errs, Error{Path: "key_file", Err: keyErr})
	}
	if len(errs) > 0 {
		return nil, errs
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, Errors{{Path: "cert_file", Err: fmt.Errorf("%s and %s are not a certificate and its key: %w", certFile, keyFile, err)}}
	}
	return []tls.Certificate{pair}, nil
}
