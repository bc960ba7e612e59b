package relay

import (
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/certs"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/rollout/gate"
	"github.com/xds-relay/xds-relay/store"
	"github.com/xds-relay/xds-relay/taster"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/directory"
)

// origins are the control planes and directories of the configured authorities. They open the
// source of each scope: one stream, or one for each type, on a connection that all scopes
// with the same place share; or the authority's directory, which is read once for all scopes.
type origins struct {
	router *authority.Router
	node   *corev3.Node // the relay's own, for xdstp names
	log    *slog.Logger
	// chains has the relays that the streams of each scope announce.
	chains *chain.Table[cache.Scope]

	conns       map[*configs.Server]connection // servers at the same place share one
	directories map[*configs.Authority]directorySource
	guards      *guards
	reached     reached
	// tallies have the resources that clients would reject.
	tallies map[*configs.Authority]*taster.Tally
	// errors counts the errors in resource_errors.
	errors map[*configs.Authority]*atomic.Uint64
	// switches counts the switches to another server.
	switches map[*configs.Authority]*atomic.Uint64
	// presences log when a server is lost and when it answers again.
	presences map[*configs.Server]*upstream.Presence
	// reachability has the unreachable scopes.
	reachability *failover.Reachability
	// cache has the resources from which a stream to another server may resume, and knows
	// which topics small clients watch.
	cache sink

	// store has what was accepted, nil if nothing is stored. started and wait are as in
	// store.KeeperOptions.
	store *store.Store
	keeps store.KeeperOptions
	// rollouts are nil if no authority has a rollout.
	rollouts *gate.Controller

	mu      sync.Mutex
	streams map[cache.Scope]serverSource
	room    cache.Room // of streams
}

// sink is the cache.
type sink interface {
	store.Cache
	guard.Cache
	failover.Holder
	HasSmallClient(k cache.Key, most int64) bool
	Requests() *cache.Requests
	GiveUpIdle(match func(cache.Scope) bool) bool
}

// newOrigins connects to nothing yet. If builtIn is not nil, it replaces the configured
// directories.
func newOrigins(cfg *configs.Config, router *authority.Router, builtIn fs.FS, credentials *certs.Store, sink sink, rollouts *gate.Controller, log *slog.Logger) (*origins, error) {
	s := &origins{
		router: router, node: relayNode(cfg), log: log,
		chains:       chain.NewTable[cache.Scope](cfg.Node.ID, cfg.Cache.Linger),
		conns:        map[*configs.Server]connection{},
		directories:  map[*configs.Authority]directorySource{},
		guards:       newGuards(cfg, router, log),
		tallies:      map[*configs.Authority]*taster.Tally{},
		errors:       map[*configs.Authority]*atomic.Uint64{},
		switches:     map[*configs.Authority]*atomic.Uint64{},
		presences:    map[*configs.Server]*upstream.Presence{},
		reachability: failover.NewReachability(),
		cache:        sink,
		streams:      map[cache.Scope]serverSource{},
		rollouts:     rollouts,
	}
	at := map[place]connection{}
	for i := range cfg.Authorities {
		a := &cfg.Authorities[i]
		s.tallies[a] = taster.NewTally(CheckMode(a.Check), log.With("authority", a.Name))
		switch {
		case a.Directory != "":
			s.directories[a] = s.openDirectory(a, builtIn, sink, log)
		default:
			for j := range a.Servers {
				server := &a.Servers[j]
				to := placeOf(*server)
				conn := at[to]
				if conn == nil {
					var err error
					if conn, err = dial(*server, credentials, func() bool { return s.makeRoom(to) }); err != nil {
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

// openDirectory begins to read an authority's directory, or builtIn in its place if that is not nil.
func (s *origins) openDirectory(a *configs.Authority, builtIn fs.FS, sink sink, log *slog.Logger) directorySource {
	var of atomic.Pointer[directory.Source]
	settings := s.guards.settings()
	settings.Waits = func(cache.Key, time.Time) (until time.Time) {
		if d := of.Load(); d != nil && d.Unread() {
			until = time.Now().Add(time.Second)
		}
		return until
	}
	g := guard.New(s.gated(a, sink), sink, settings)
	var d *directory.Source
	if builtIn != nil {
		d = directory.NewFS(builtIn, a.Name, g, log)
	} else {
		d = directory.New(a.Directory, a.Name, s.tallies[a], g, log)
	}
	of.Store(d)
	return directorySource{d, g}
}

// makeRoom closes the streams of a scope without clients to a place, so that another scope can
// open one. It returns false if there is no such scope.
func (s *origins) makeRoom(at place) bool {
	return s.cache.GiveUpIdle(func(scope cache.Scope) bool {
		a, ok := s.router.Source(scope)
		return ok && slices.ContainsFunc(a.Servers, func(server configs.Server) bool { return placeOf(server) == at })
	})
}

// statuses returns the status of every stream.
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

// Close closes the connections and directories. Call it after the scopes' sources are closed.
func (s *origins) Close() {
	var reading sync.WaitGroup
	for _, d := range s.directories {
		reading.Go(d.Source.Close)
	}
	reading.Wait()
	for _, d := range s.directories {
		d.guard.Close()
	}
	for _, c := range s.conns {
		_ = c.Close() // the only error is that it is closed already
	}
}

// open returns the source of a scope. node is the Node that the source sends: see nodeFor. It
// is nil for xdstp names, for which the source sends the relay's own Node.
func (s *origins) open(scope cache.Scope, node *corev3.Node) source {
	// The router made the scope, so it knows the authority.
	a, _ := s.router.Source(scope)
	gated := s.rollouts != nil && s.rollouts.Opened(scope)
	if d, ok := s.directories[a]; ok {
		if gated {
			return &gatedSource{d, s.rollouts, scope}
		}
		return d
	}
	if node == nil {
		node = s.node
	}
	f := s.openGuarded(scope, a, node)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[scope] = f
	opened := &openSource{serverSource: f, scope: scope, origins: s}
	if gated {
		s.rollouts.Tells(scope, f)
		return &gatedSource{opened, s.rollouts, scope}
	}
	return opened
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
	if f.origins.streams[f.scope] == f.serverSource { // it may be the successor
		f.origins.streams = cache.Without(f.origins.streams, &f.origins.room, f.scope)
	}
}
