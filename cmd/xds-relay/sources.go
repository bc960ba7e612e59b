package main

import (
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
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/directory"
)

// sources are what the configured authorities are fed from. Each scope's feed is
// made from its authority's: a stream of its own on the connection that all
// scopes of a server share, or the one reading of a directory.
type sources struct {
	router *authority.Router
	node   *corev3.Node // the relay's own, for xdstp names
	sink   upstream.Sink
	log    *slog.Logger

	conns       map[*configs.Authority]*grpc.ClientConn
	directories map[*configs.Authority]*directory.Source
	// errors counts what the servers say in resource_errors.
	errors map[*configs.Authority]*atomic.Uint64

	mu      sync.Mutex
	streams map[cache.Scope]*upstream.Stream
}

// newSources connects to nothing yet. builtIn, if not nil, is read instead of
// the configured directories.
func newSources(cfg *configs.Config, router *authority.Router, builtIn fs.FS, sink upstream.Sink, log *slog.Logger) (*sources, error) {
	s := &sources{
		router: router, node: relayNode(cfg), sink: sink, log: log,
		conns:       map[*configs.Authority]*grpc.ClientConn{},
		directories: map[*configs.Authority]*directory.Source{},
		errors:      map[*configs.Authority]*atomic.Uint64{},
		streams:     map[cache.Scope]*upstream.Stream{},
	}
	for i := range cfg.Authorities {
		a := &cfg.Authorities[i]
		switch {
		case a.Directory != "" && builtIn != nil:
			s.directories[a] = directory.NewFS(builtIn, a.Name, sink, log)
		case a.Directory != "":
			s.directories[a] = directory.New(a.Directory, a.Name, sink, log)
		default:
			conn, err := dial(a.Servers[0])
			if err != nil {
				s.Close()
				return nil, err
			}
			s.conns[a], s.errors[a] = conn, new(atomic.Uint64)
		}
	}
	return s, nil
}

// relayNode is how the relay names itself.
func relayNode(cfg *configs.Config) *corev3.Node {
	node := cfg.Node.Proto()
	node.UserAgentName = "xds-relay"
	node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: version()}
	node.ClientFeatures = slices.Clone(features)
	return node
}

// version is the build's module version.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

func dial(s configs.Server) (*grpc.ClientConn, error) {
	o := upstream.DialOptions{
		KeepaliveTime:    s.Keepalive.Time,
		KeepaliveTimeout: s.Keepalive.Timeout,
		MaxResponseBytes: int(s.MaxResponseBytes),
		UserAgent:        "xds-relay/" + version(),
	}
	if s.TLS != nil {
		config, err := s.TLS.Load()
		if err != nil {
			return nil, err
		}
		o.TLS = credentials.NewTLS(config)
	}
	return upstream.Dial(s.Address, o)
}

// open makes the feed of a scope. node is that of the clients that it stands for;
// it is nil for xdstp names, which are asked for with the relay's own.
func (s *sources) open(scope cache.Scope, node *corev3.Node) feed {
	// The router made the scope, so it knows the authority.
	a, _ := s.router.Source(scope)
	if d := s.directories[a]; d != nil {
		return directoryFeed{d}
	}
	if node == nil {
		node = s.node
	}
	server := a.Servers[0]
	stream := upstream.NewStream(scope, s.conns[a], node, upstream.Options{
		Protocol:    upstream.Protocol(server.Protocol),
		BackoffBase: server.Backoff.Base,
		BackoffMax:  server.Backoff.Max,

		ResourceErrors: s.errors[a],
	}, s.sink, s.log)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[scope] = stream
	return &streamFeed{Stream: stream, scope: scope, sources: s}
}

// streamFeed is a stream that the sources know of while it is open.
type streamFeed struct {
	*upstream.Stream
	scope   cache.Scope
	sources *sources
}

// Close implements feed.
func (f *streamFeed) Close() {
	f.Stream.Close()
	<-f.Done()
	f.sources.mu.Lock()
	defer f.sources.mu.Unlock()
	if f.sources.streams[f.scope] == f.Stream { // and not its successor
		delete(f.sources.streams, f.scope)
	}
}

// directoryFeed is a scope's part of a directory, which outlives it.
type directoryFeed struct{ *directory.Source }

// Leave implements feed.
func (directoryFeed) Leave() {}

// Close implements feed.
func (directoryFeed) Close() {}

// statuses returns how the streams are doing.
func (s *sources) statuses() map[cache.Scope]upstream.Status {
	s.mu.Lock()
	streams := maps.Clone(s.streams)
	s.mu.Unlock()
	statuses := make(map[cache.Scope]upstream.Status, len(streams))
	for scope, stream := range streams {
		statuses[scope] = stream.Status()
	}
	return statuses
}

// Close ends what the feeds were made from. They are closed before.
func (s *sources) Close() {
	for _, d := range s.directories {
		d.Close()
	}
	for _, c := range s.conns {
		_ = c.Close() // it says only that it was closed before
	}
}
