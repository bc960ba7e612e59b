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
	CertFile string `mapstructure:"cert_file"`
	KeyFile  string `mapstructure:"key_file"`
	// ClientCAFile, if not empty, has the roots of the certificates that
	// clients then have to show.
	ClientCAFile string `mapstructure:"client_ca_file"`
}

// ServerTLS is TLS towards a server. An empty one trusts the system's roots.
// Files are PEM, and relative to the folder in which the relay is started.
type ServerTLS struct {
	// CAFile has the roots to trust instead of the system's.
	CAFile string `mapstructure:"ca_file"`
	// CertFile and KeyFile are what the relay shows to the server. Both or
	// neither.
	CertFile string `mapstructure:"cert_file"`
	KeyFile  string `mapstructure:"key_file"`
	// ServerName is the name in the server's certificate, if it is not the
	// host of its address.
	ServerName string `mapstructure:"server_name"`
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
