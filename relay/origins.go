package relay

import (
	"crypto/tls"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/directory"
)

// origins are the control planes and directories of the configured authorities. The source
// of a scope comes from its authority's: a stream of its own, or one for each type, on the
// connection that all scopes of all authorities share which go to the same place, or
// the one reading of a directory.
type origins struct {
	router *authority.Router
	node   *corev3.Node // the relay's own, for xdstp names
	sink   upstream.Sink
	log    *slog.Logger
	// chains are the relays that the streams announce.
	chains *chain.Table[cache.Scope]

	conns       map[*configs.Server]connection // of servers in one place it is the same
	directories map[*configs.Authority]*directory.Source
	// errors counts what the servers say in resource_errors.
	errors map[*configs.Authority]*atomic.Uint64
	// switches counts how often another server has taken the place of one.
	switches map[*configs.Authority]*atomic.Uint64
	// presences tell when a server is lost and when it answers again.
	presences map[*configs.Server]*upstream.Presence
	// reach is which scopes cannot be reached.
	reachability *failover.Reachability
	// held is asked for what may be offered to another server, and who asks for what.
	held sink

	mu      sync.Mutex
	streams map[cache.Scope]serverSource
	room    cache.Room // of streams
}

// connection is what all scopes share that go to the same place: gRPC's, or that for
// REST.
type connection interface {
	grpc.ClientConnInterface
	io.Closer
}

// sink is the cache.
type sink interface {
	upstream.Sink
	failover.Holder
	HasSmallClient(k cache.Key, most int64) bool
	GiveUpIdle(match func(cache.Scope) bool) bool
}

// streams are those of one scope and server: an upstream.Stream, or upstream.Streams.
type streams interface {
	failover.Feed
	Statuses() []upstream.Status
}

// newOrigins connects to nothing yet. builtIn, if not nil, is read instead of
// the configured directories.
func newOrigins(cfg *configs.Config, router *authority.Router, builtIn fs.FS, sink sink, log *slog.Logger) (*origins, error) {
	s := &origins{
		router: router, node: relayNode(cfg), sink: sink, log: log,
		chains:       chain.NewTable[cache.Scope](cfg.Node.ID, cfg.Cache.Linger),
		conns:        map[*configs.Server]connection{},
		directories:  map[*configs.Authority]*directory.Source{},
		errors:       map[*configs.Authority]*atomic.Uint64{},
		switches:     map[*configs.Authority]*atomic.Uint64{},
		presences:    map[*configs.Server]*upstream.Presence{},
		reachability: failover.NewReachability(),
		held:         sink,
		streams:      map[cache.Scope]serverSource{},
	}
	at := map[place]connection{}
	for i := range cfg.Authorities {
		a := &cfg.Authorities[i]
		switch {
		case a.Directory != "" && builtIn != nil:
			s.directories[a] = directory.NewFS(builtIn, a.Name, sink, log)
		case a.Directory != "":
			s.directories[a] = directory.New(a.Directory, a.Name, sink, log)
		default:
			for j := range a.Servers {
				server := &a.Servers[j]
				to := placeOf(*server)
				conn := at[to]
				if conn == nil {
					var err error
					if conn, err = dial(*server, func() bool { return s.makeRoom(to) }); err != nil {
						s.Close()
						return nil, err
					}
					at[to] = conn
				}
				s.conns[server] = conn
				s.presences[server] = upstream.NewPresence(server.Address, log.With("authority", a.Name))
			}
			s.errors[a], s.switches[a] = new(atomic.Uint64), new(atomic.Uint64)
		}
	}
	return s, nil
}

// place is where a connection goes, and how: the configuration of a server without what
// is of each stream.
type place struct {
	configs.Server
	tls configs.ServerTLS // what Server.TLS points to, if secure
	// secure says that there is TLS.
	secure bool
}

func placeOf(s configs.Server) place {
	p := place{Server: s, secure: s.TLS != nil}
	if p.secure {
		p.tls = *s.TLS
	}
	p.TLS, p.Aggregated, p.Globs, p.Backoff, p.MaxRequestBytes = nil, false, false, configs.Backoff{}, 0
	if s.Protocol != configs.ProtocolREST {
		p.Protocol = ""
	}
	return p
}

// version is the build's module version.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// makeRoom gives up a scope without clients that is fed from a place, so that there is room
// for a stream of another one. It returns false if there is none.
func (s *origins) makeRoom(at place) bool {
	return s.held.GiveUpIdle(func(scope cache.Scope) bool {
		a, ok := s.router.Source(scope)
		return ok && slices.ContainsFunc(a.Servers, func(server configs.Server) bool { return placeOf(server) == at })
	})
}

// dial prepares the connection to a server. makeRoom is upstream.DialOptions.MakeRoom.
func dial(s configs.Server, makeRoom func() bool) (connection, error) {
	var config *tls.Config
	if s.TLS != nil {
		var err error
		if config, err = s.TLS.Load(); err != nil {
			return nil, err
		}
	}
	userAgent := "xds-relay/" + version()
	if s.Protocol == configs.ProtocolREST {
		return upstream.DialREST(s.Address, upstream.RESTOptions{
			TLS:              config,
			PollInterval:     s.PollInterval,
			RequestTimeout:   s.RequestTimeout,
			ProbeAfter:       s.Probe.After,
			ProbeTimeout:     s.Probe.Timeout,
			MaxResponseBytes: int(s.MaxResponseBytes),
			UserAgent:        userAgent,
		}), nil
	}
	o := upstream.DialOptions{
		KeepaliveTime:    s.Keepalive.Time,
		KeepaliveTimeout: s.Keepalive.Timeout,
		ProbeAfter:       s.Probe.After,
		ProbeTimeout:     s.Probe.Timeout,
		StreamWindow:     int32(s.Windows.Stream), // Bytes are less than 2 GiB
		ConnWindow:       int32(s.Windows.Connection),
		MaxResponseBytes: int(s.MaxResponseBytes),
		UserAgent:        userAgent,
		MakeRoom:         makeRoom,
	}
	if config != nil {
		o.TLS = credentials.NewTLS(config)
	}
	conn, err := upstream.Dial(s.Address, o)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// open returns the source of a scope. node is as whom its clients' names are asked for: see
// nodeFor. It is nil for xdstp names, which are asked for with the relay's own.
func (s *origins) open(scope cache.Scope, node *corev3.Node) source {
	// The router made the scope, so it knows the authority.
	a, _ := s.router.Source(scope)
	if d := s.directories[a]; d != nil {
		return directorySource{d}
	}
	if node == nil {
		node = s.node
	}
	f := s.openServers(scope, a, node)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[scope] = f
	return &openSource{serverSource: f, scope: scope, origins: s}
}

// openServer opens the streams of a scope to one server.
func (s *origins) openServer(scope cache.Scope, a *configs.Authority, server *configs.Server, node *corev3.Node, o upstream.Options, sink upstream.Sink) streams {
	o.Protocol = protocolFor(*server, node)
	o.BackoffBase, o.BackoffMax = server.Backoff.Base, server.Backoff.Max
	o.MaxRequestBytes, o.Modest = int(server.MaxRequestBytes), s.held.HasSmallClient
	o.NoGlobs = !server.Globs
	o.Speaks = func(authority string) bool { return speaks(s.router, server, authority) }
	o.ResourceErrors = s.errors[a]
	o.Presence = s.presences[server]
	o.Chain = s.chains.Of(partitionOf(scope))
	if server.Aggregated {
		return upstream.NewStream(scope, s.conns[server], node, o, sink, s.log)
	}
	return upstream.NewStreams(scope, s.conns[server], node, o, sink, s.log)
}

// openSource is a source from servers, in origins.streams while it is open.
type openSource struct {
	serverSource
	scope   cache.Scope
	origins *origins
}

// Close implements source.
func (f *openSource) Close() {
	f.serverSource.Close()
	f.origins.mu.Lock()
	defer f.origins.mu.Unlock()
	if f.origins.streams[f.scope] == f.serverSource { // and not its successor
		f.origins.streams = cache.Without(f.origins.streams, &f.origins.room, f.scope)
	}
}

// Resume implements cache.Resumer.
func (f *openSource) Resume(k cache.Key) { cache.Resume(f.serverSource, k) }

// directorySource is a scope's part of a directory, which outlives it.
type directorySource struct{ *directory.Source }

// Drain implements source.
func (directorySource) Drain() {}

// Close implements source.
func (directorySource) Close() {}

// statuses returns how the streams are doing.
func (s *origins) statuses() map[cache.Scope][]serverStatus {
	s.mu.Lock()
	open := maps.Clone(s.streams)
	s.mu.Unlock()
	statuses := make(map[cache.Scope][]serverStatus, len(open))
	for scope, of := range open {
		statuses[scope] = of.statuses()
	}
	return statuses
}

// Close closes the connections and directories. The scopes' sources were closed before.
func (s *origins) Close() {
	var reading sync.WaitGroup
	for _, d := range s.directories {
		reading.Go(d.Close)
	}
	reading.Wait()
	for _, c := range s.conns {
		_ = c.Close() // it says only that it was closed before
	}
}
