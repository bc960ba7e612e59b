package relay

// The admin listener.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/sockets"
)

// adminListener is the admin listener: its turn of a socket, and its HTTP server.
type adminListener struct {
	config  configs.Admin
	sockets *sockets.Socket
	// opened says that the socket was opened for this listener, and taken that it was the socket of a client listener.
	// If neither is set, the previous admin listener had the socket.
	opened, taken bool
	turn          *sockets.Turn
	socket        net.Listener // the turn, with limits and TLS
	address       string
	http          *http.Server
	credentials   *certs.Part
	// lost is why the socket accepts no more connections, nil while it accepts them. Relay.listening guards it.
	lost error
}

// planOperator returns the admin listener of a configuration, nil if it has none. That is the present one if nothing
// changes, or another one, which does not serve yet. It opens a lost listener again, or leaves it lost.
func (r *Relay) planOperator(ctx context.Context, cfg *configs.Config, from *sockets.Leaving) (*adminListener, *configs.Error) {
	o, before := &cfg.Admin, r.theOperator()
	if o.Address == "" {
		return nil, nil
	}
	lost := r.lostOperator()
	if before != nil && lost == nil && configs.Fingerprint(before.config) == configs.Fingerprint(o) {
		return before, nil
	}
	n := &adminListener{config: *o, credentials: r.credentials.Part()}
	failed := func(key, format string, args ...any) (*adminListener, *configs.Error) {
		n.credentials.Close()
		err := cfg.Errorf(key, format, args...)
		return nil, &err
	}
	var tlsConfig *tls.Config
	var certificate func() *x509.Certificate
	if o.TLS != nil {
		listener, err := n.credentials.Listener(certs.ListenerOptions{
			Role:     certs.RoleAdmin,
			CertFile: o.TLS.CertFile, KeyFile: o.TLS.KeyFile, ClientCAFile: o.TLS.ClientCAFile,
			MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		})
		if err != nil {
			return failed("admin.tls", "%w", err)
		}
		tlsConfig, certificate = listener.Config(), listener.Certificate
	}
	stays := before != nil && before.config.Address == o.Address
	var err error
	switch {
	case !stays:
		if n.sockets, n.taken, err = from.Open(ctx, o.Address, o.Mode); err != nil {
			return failed("admin.address", "%w", err)
		}
		n.opened = !n.taken
	case lost == nil:
		n.sockets = before.sockets
	default:
		if n.sockets, err = sockets.Open(ctx, before.address, o.Mode); err != nil {
			n.sockets, n.lost = before.sockets, lost // a lost listener does not make the configuration invalid
		}
		n.opened = n.lost == nil
	}
	n.address = n.sockets.Address
	// The host's resolver decides which address localhost has.
	if err := o.Exposed(n.address); err != nil {
		if n.opened {
			_ = n.sockets.Close()
		}
		return failed("admin.address", "%s leads to %w", o.Address, err)
	}
	n.turn = n.sockets.Turn()
	n.socket = admin.Limit(n.turn)
	if tlsConfig != nil {
		n.socket = tls.NewListener(n.socket, tlsConfig)
	}
	n.http = r.admin.HTTP(r.log, certificate)
	return n, nil
}

// undoOperator closes a planned admin listener.
func (r *Relay) undoOperator(n *adminListener) {
	before := r.theOperator()
	if n == nil || n == before {
		return
	}
	n.credentials.Close()
	if n.opened {
		_ = n.sockets.Close()
	}
}

// commitOperator makes n the admin listener. The previous one answers the requests that it has received. Its socket
// is closed unless another listener has taken it over.
func (r *Relay) commitOperator(n *adminListener, taken bool) {
	r.listening.Lock()
	before := r.operator
	r.operator = n
	running := r.running
	r.listening.Unlock()
	r.changes.Measure(r.measures())
	r.history.Keep(n != nil)
	if before == n {
		return
	}
	if n != nil && !n.opened && (n.taken || n.config.Mode != before.config.Mode) {
		r.changeMode(n.config.Address, n.config.Mode)
	}
	if before != nil {
		_ = before.turn.Close() // it always returns nil
		if !taken && (n == nil || n.sockets != before.sockets) {
			_ = before.sockets.Close()
		}
		go before.finish()
	}
	if n != nil && n.lost == nil && running != nil {
		r.serveOperator(running, n)
	}
}

// theOperator returns the admin listener, nil if there is none.
func (r *Relay) theOperator() *adminListener {
	r.listening.Lock()
	defer r.listening.Unlock()
	return r.operator
}

// serve serves until the server's turn ends, or it fails.
func (o *adminListener) serve() error {
	err := o.http.Serve(o.socket)
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) && o.turn.HasEnded() {
		return nil
	}
	return err
}

// finish closes the server once it has answered its requests, or after a short time.
func (o *adminListener) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = o.http.Shutdown(ctx)
	_ = o.stop()
}

// stop closes the server. It may be called at any time, also twice.
func (o *adminListener) stop() error {
	defer o.credentials.Close()
	return o.http.Close()
}

// close closes the server and its socket.
func (o *adminListener) close() error {
	err := o.stop()
	_ = o.sockets.Close() // it may be closed already
	return err
}
