package relay

// A listener for clients: a socket with the servers of its protocol.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/internal/sockets"
)

// listener is an address on which clients are served.
type listener struct {
	address string
	peers   bool // it is for other members of the fleet
	door    *downstream.Door
	// expiries are the expiry times of clients' certificates.
	expiries *downstream.Expiries

	mu     sync.Mutex
	config *configs.Listener
	socket *sockets.Socket // nil after giveUp
	server *clientServer
	// lost is why the socket accepts no more connections, nil while it accepts them.
	lost error
	// before are the servers of earlier configurations that still have connections.
	before map[*clientServer]struct{}
	// identities are the credentials that identify clients.
	identities *certs.Part
	stopped    bool
}

// clientServer is a server with the connections that it has accepted. Exactly one of grpc and rest is set.
type clientServer struct {
	protocol    configs.ListenerProtocol
	socket      downstream.Listener // a turn of the listener's socket, with limits
	turn        *sockets.Turn
	credentials *certs.Part
	grpc        *grpc.Server
	rest        *http.Server
}

// listenerOptions returns the options of a listener that do not depend on TLS files.
func (r *Relay) listenerOptions(cfg *configs.Config, l *configs.Listener) downstream.ListenerOptions {
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
		Proxies:          l.ProxyProtocol.Trusts(),
		LongPoll:         l.LongPoll,
		V2:               l.V2,
		PassRedirects:    l.Redirects == configs.RedirectsPass,
		Prefetch:         l.Prefetch,
		Relays:           l.IsRelay,
		SecretsForAnyone: l.Secrets == configs.SecretsAnyone,
		WhenUnreachable:  whenUnreachable[l.WhenUnreachable],
		Limits:           limitsOf(l),
		PerIdentity: downstream.IdentityLimits{
			Streams:           l.Limits.StreamsPerIdentity,
			Scopes:            l.Limits.ScopesPerIdentity,
			Types:             l.Limits.TypesPerIdentity,
			Subscriptions:     l.Limits.SubscriptionsPerIdentity,
			RequestsPerSecond: l.Limits.RequestsPerSecondPerIdentity,
		},
	}
	o.Limits.Connections = r.connections(cfg, l)
	if l.Protocol == configs.ListenerREST {
		o.UserTimeout = 0 // HTTP servers have a write timeout
	}
	return o
}

// newServer makes a server for the next turn of a socket. It accepts no connections until the previous turn has
// ended.
func (r *Relay) newServer(l *configs.Listener, on *sockets.Socket, o downstream.ListenerOptions, peers bool) (*clientServer, error) {
	part := r.credentials.Part()
	tlsConfig, err := listenerTLS(part, l)
	if err != nil {
		part.Close()
		return nil, fmt.Errorf("tls: %w", err)
	}
	n := &clientServer{protocol: l.Protocol, turn: on.Turn(), credentials: part}
	if l.Protocol == configs.ListenerREST {
		n.socket = r.server.ListenREST(n.turn, tlsConfig, o)
		n.rest = r.server.HTTPServer(o)
		return n, nil
	}
	n.socket = r.server.Listen(n.turn, o)
	creds := insecure.NewCredentials()
	if tlsConfig != nil {
		creds = credentials.NewTLS(tlsConfig)
	}
	options := append(downstream.ServerOptions(o), grpc.Creds(downstream.Metered(creds)))
	if peers {
		options = append(options, peersDoor{r, o.Door}.serverOptions()...)
	}
	n.grpc = grpc.NewServer(options...)
	others := r.server.Register(n.grpc, o)
	if peers {
		healthpb.RegisterHealthServer(others, r.peersHealth)
		fleet.RegisterAnswers(others, r.observer.AnswerMember)
		return n, nil
	}
	healthpb.RegisterHealthServer(others, r.health)
	if l.CSDS {
		r.observer.ClientCSDS(o.Door).Register(others)
	}
	reflection.Register(others)
	return n, nil
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
		MemoryNames:       float64(l.Limits.MemoryNames),
		MemoryStreams:     float64(l.Limits.MemoryStreams),

		ConnectionsPerSecond: l.Limits.ConnectionsPerSecond,
		Scopes:               l.Limits.Scopes, ScopesPerConnection: l.Limits.ScopesPerConnection,
	}
}

// serve serves until the server's turn ends, or it fails.
func (s *clientServer) serve() error {
	var err error
	if s.grpc != nil {
		err = s.grpc.Serve(s.socket)
	} else {
		err = s.rest.Serve(s.socket) // the socket does TLS
	}
	if errors.Is(err, grpc.ErrServerStopped) || errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) && s.turn.HasEnded() {
		return nil
	}
	return err
}

// drain closes the socket, sends the clients away over drainTime, and stops the servers. If ctx ends earlier, the
// remaining streams end at that moment.
func (l *listener) drain(ctx context.Context, drainTime time.Duration) {
	l.closeSocket()
	var draining sync.WaitGroup
	for _, s := range l.servers() {
		draining.Go(func() { s.socket.Drain(ctx, drainTime) })
	}
	draining.Wait()
	l.finish()
	l.stop()
}

// outlive waits until all connections of a server whose turn has ended are closed. Over the given time, it asks one
// client after another to open its next streams on other connections; the streams that are open continue. If ctx ends
// earlier, it asks all remaining clients at once.
func (s *clientServer) outlive(ctx context.Context, within time.Duration) {
	s.socket.Retire(ctx, within)
	if s.grpc != nil {
		s.grpc.GracefulStop()
	} else {
		_ = s.rest.Shutdown(context.Background())
	}
	s.credentials.Close()
}

// stop ends the server and its connections. It may be called at any time, also twice.
func (s *clientServer) stop() {
	if s.grpc != nil {
		s.grpc.Stop()
	} else {
		_ = s.rest.Close()
	}
}

// replaceServer begins the turn of another server. The previous server keeps its connections: see outlive.
func (l *listener) replaceServer(ctx context.Context, by *clientServer, within time.Duration) {
	l.mu.Lock()
	old := l.server
	l.server = by
	if l.stopped {
		l.mu.Unlock()
		by.stop()
		return
	}
	if old != nil {
		l.before[old] = struct{}{}
	}
	l.mu.Unlock()
	if old == nil {
		return
	}
	_ = old.turn.Close() // it always returns nil
	go func() {
		old.outlive(ctx, within)
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.before, old)
	}()
}

// closeSocket makes the listener accept no more connections. It may be called twice, and after giveUp.
func (l *listener) closeSocket() {
	l.mu.Lock()
	s := l.socket
	l.mu.Unlock()
	l.endTurn()
	if s != nil {
		_ = s.Close() // it may be closed already
	}
}

// giveUp makes the listener accept no more connections, and returns its socket, which stays open. The caller holds
// reloading.
func (l *listener) giveUp() *sockets.Socket {
	l.mu.Lock()
	s := l.socket
	l.socket = nil
	l.mu.Unlock()
	l.endTurn()
	return s
}

// endTurn ends the turn of the server that accepts connections, if there is one.
func (l *listener) endTurn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server != nil {
		_ = l.server.turn.Close() // it always returns nil
	}
}

// lose notes that a server's socket accepts no more connections, and closes it. It returns false if the listener has
// another server by now, or has stopped.
func (l *listener) lose(s *clientServer, why error) bool {
	l.mu.Lock()
	is := l.server == s && !l.stopped && l.lost == nil
	if is {
		l.lost = why
	}
	l.mu.Unlock()
	if is {
		l.closeSocket()
	}
	return is
}

// isLost returns why the listener accepts no connections, nil if it accepts them.
func (l *listener) isLost() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// servers returns the server that accepts connections, and the earlier ones that still have connections.
func (l *listener) servers() []*clientServer {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []*clientServer{l.server}
	for s := range l.before {
		all = append(all, s)
	}
	return all
}

// finish waits a short time until the servers have answered running REST requests. It does not wait for streams,
// which do not end by themselves.
func (l *listener) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var finishing sync.WaitGroup
	for _, s := range l.servers() {
		if s.rest != nil {
			finishing.Go(func() { _ = s.rest.Shutdown(ctx) }) // stop ends the remaining requests
		}
	}
	finishing.Wait()
}

// stop closes the servers and the socket. It may be called at any time, also twice.
func (l *listener) stop() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	for _, s := range l.servers() {
		s.stop()
		s.credentials.Close()
	}
	l.closeSocket()
	l.identities.Close()
}
