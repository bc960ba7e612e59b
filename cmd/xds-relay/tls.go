package main

// The TLS flags of `get` and `watch`.

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"
)

type tlsFlags struct {
	on         bool
	ca         string
	cert, key  string
	serverName string
}

func (f *tlsFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "tls", false, "use TLS; the flags below imply it")
	flags.StringVar(&f.ca, "ca-file", "", "trust the certificates in this PEM `FILE`, not the system's")
	flags.StringVar(&f.cert, "cert-file", "", "the client's own certificate, a PEM `FILE`")
	flags.StringVar(&f.key, "key-file", "", "the key for --cert-file, a PEM `FILE`")
	flags.StringVar(&f.serverName, "server-name", "", "the `NAME` in the server's certificate, if not the host of --server")
}

// credentials returns nil for plaintext.
func (f *tlsFlags) credentials() (credentials.TransportCredentials, error) {
	config, err := f.config()
	if config == nil || err != nil {
		return nil, err
	}
	return credentials.NewTLS(config), nil
}

// config returns nil for plaintext.
func (f *tlsFlags) config() (*tls.Config, error) {
	if !f.on && f.ca == "" && f.cert == "" && f.key == "" && f.serverName == "" {
		return nil, nil
	}
	config := &tls.Config{ServerName: f.serverName, MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca-file %s: the file has no certificate (want PEM)", f.ca)
		}
	}
	if (f.cert == "") != (f.key == "") {
		return nil, errors.New("--cert-file and --key-file go together")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("--cert-file %s, --key-file %s: %w", f.cert, f.key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
