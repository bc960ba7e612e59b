package relay

// The operator's listener.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/certs"
)

// operator is the admin listener: a socket and its server.
type operator struct {
	socket  net.Listener
	address string
	http    *http.Server
}

// listenOperator opens the admin listener, if the configuration has one.
func (r *Relay) listenOperator(ctx context.Context) error {
	o := &r.cfg.Admin
	if o.Address == "" {
		return nil
	}
	var tlsConfig *tls.Config
	var certificate func() *x509.Certificate
	if o.TLS != nil {
		listener, err := r.credentials.Listener(certs.ListenerOptions{
			Role:     certs.RoleAdmin,
			CertFile: o.TLS.CertFile, KeyFile: o.TLS.KeyFile, ClientCAFile: o.TLS.ClientCAFile,
			MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		})
		if err != nil {
			return fmt.Errorf("admin.tls: %w", err)
		}
		tlsConfig, certificate = listener.Config(), listener.Certificate
	}
	socket, address, err := openSocket(ctx, o.Address, o.Mode)
	if err != nil {
		return fmt.Errorf("admin.address: %w", err)
	}
	// What localhost means is for the host's resolver to say.
	if err := o.Exposed(address); err != nil {
		_ = socket.Close()
		return fmt.Errorf("admin.address: %s leads to %w", o.Address, err)
	}
	socket = admin.Limit(socket)
	if tlsConfig != nil {
		socket = tls.NewListener(socket, tlsConfig)
	}
	r.operator = &operator{socket: socket, address: address, http: r.admin.HTTP(r.log, certificate)}
	return nil
}

// serve serves until the listener is stopped, or fails.
func (o *operator) serve() error {
	if err := o.http.Serve(o.socket); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin listener: %w", err)
	}
	return nil
}

// stop closes the server and its socket. It may be called at any time, also twice.
func (o *operator) stop() error {
	err := o.http.Close()
	_ = o.socket.Close() // Close of the server does it only while it serves
	return err
}
