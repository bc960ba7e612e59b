package relay

// A listener for clients: a socket and the server of its protocol.

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/identity"
)

// listener has either grpc or rest.
type listener struct {
	socket  downstream.Listener
	address string
	// drainTime is over what time drain sends clients away.
	drainTime time.Duration
	// expiries are those of clients' certificates. It is nil for plaintext.
	expiries *downstream.Expiries
	protocol configs.ListenerProtocol
	grpc     *grpc.Server
	rest     *http.Server
}

// newListener makes the server of a listener. tlsConfig is nil for plaintext.
func (r *Relay) newListener(l *configs.Listener, socket net.Listener, address string, tlsConfig *tls.Config, identify func(identity.Proof) (*identity.Identity, error)) *listener {
	o := downstream.ListenerOptions{
		MaxRequestBytes:  int(l.MaxRequestBytes),
		MaxResponseBytes: int(l.MaxResponseBytes),
		KeepaliveTime:    l.Keepalive.Time,
		KeepaliveTimeout: l.Keepalive.Timeout,
		UserTimeout:      l.Keepalive.Timeout,
		StreamWindow:     int32(l.Windows.Stream), // Bytes are less than 2 GiB
		ConnWindow:       int32(l.Windows.Connection),
		ReadBuffer:       int(l.Buffers.Read),
		WriteBuffer:      int(l.Buffers.Write),
		ConnStreams:      l.Limits.StreamsPerConnection,
		MaxConnectionAge: l.MaxConnectionAge,
		Admission: downstream.Admission{
			StreamsPerSecond: l.Admission.StreamsPerSecond, Burst: l.Admission.Burst, Wait: l.Admission.Wait,
			Full: func() bool { return r.memory.Above(float64(l.Admission.Memory)) },
		},
		LongPoll:         l.LongPoll,
		V2:               l.V2,
		PassRedirects:    l.Redirects == configs.RedirectsPass,
		SecretsForAnyone: l.Secrets == configs.SecretsAnyone,
		WhenUnreachable:  whenUnreachable[l.WhenUnreachable],
		Identify:         identify,
		Limits:           limitsOf(l),
		PerIdentity: downstream.IdentityLimits{
			Streams:           l.Limits.StreamsPerIdentity,
			Scopes:            l.Limits.ScopesPerIdentity,
			Types:             l.Limits.TypesPerIdentity,
			Subscriptions:     l.Limits.SubscriptionsPerIdentity,
			RequestsPerSecond: l.Limits.RequestsPerSecondPerIdentity,
		},
	}
	o.Limits.Connections = r.connections(l)
	n := &listener{address: address, drainTime: r.cfg.Drain.Time, protocol: l.Protocol}
	if tlsConfig != nil {
		n.expiries = new(downstream.Expiries)
		o.Expiries = n.expiries
	}
	if l.Protocol == configs.ListenerREST {
		o.UserTimeout = 0 // HTTP servers have a write timeout
		n.socket = r.server.ListenREST(socket, tlsConfig, o)
		n.rest = r.server.HTTPServer(o)
		return n
	}
	n.socket = r.server.Listen(socket, o)
	creds := insecure.NewCredentials()
	if tlsConfig != nil {
		creds = credentials.NewTLS(tlsConfig)
	}
	n.grpc = grpc.NewServer(append(downstream.ServerOptions(o), grpc.Creds(downstream.Metered(creds)))...)
	others := r.server.Register(n.grpc, o)
	healthpb.RegisterHealthServer(others, r.health)
	reflection.Register(others)
	return n
}

var whenUnreachable = map[configs.WhenUnreachable]downstream.WhenUnreachable{
	configs.UnreachableAuto: downstream.EndNames,
	configs.UnreachableEnd:  downstream.EndAll,
	configs.UnreachableWait: downstream.Wait,
}

// limitsOf returns the limits on the clients of a listener.
func limitsOf(l *configs.Listener) downstream.Limits {
	return downstream.Limits{
		Subscriptions:     l.Limits.Subscriptions,
		NameBytes:         int(l.Limits.NameBytes),
		RequestsPerSecond: l.Limits.RequestsPerSecond,
		RequestBurst:      l.Limits.RequestBurst,
		Streams:           l.Limits.Streams,
		StreamsPerSecond:  l.Limits.StreamsPerSecond,

		ConnectionsPerSecond: l.Limits.ConnectionsPerSecond,
		Scopes:               l.Limits.Scopes, ScopesPerConnection: l.Limits.ScopesPerConnection,
	}
}

// serve serves until the listener is stopped, or fails.
func (l *listener) serve() error {
	var err error
	if l.grpc != nil {
		err = l.grpc.Serve(l.socket)
	} else {
		err = l.rest.Serve(l.socket) // the socket does TLS
	}
	// Nobody else closes the socket.
	if errors.Is(err, grpc.ErrServerStopped) || errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// drain closes the socket, sends the clients away over drainTime, and stops the server. If ctx ends
// earlier, the remaining streams end then.
func (l *listener) drain(ctx context.Context) {
	l.socket.Drain(ctx, l.drainTime)
	l.finish()
	l.stop()
}

// finish waits a short time until running REST requests are answered. It does not wait for
// streams, because they do not end by themselves.
func (l *listener) finish() {
	if l.rest == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.rest.Shutdown(ctx) // stop ends the remaining requests
}

// stop closes the server and its socket. It may be called at any time, also twice.
func (l *listener) stop() {
	if l.grpc != nil {
		l.grpc.Stop()
	} else {
		_ = l.rest.Close()
	}
	_ = l.socket.Close()
}
