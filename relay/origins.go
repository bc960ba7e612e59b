package relay

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"go.opentelemetry.io/otel/trace"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/history"
	"github.com/xds-relay/xds-relay/internal/partition"
	"github.com/xds-relay/xds-relay/internal/process"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

// origins are the control planes and directories of the configured authorities. They open the source of each scope.
// That is one stream, or one for each type, on a connection that all scopes with the same place share; or it is the
// authority's directory, which is read once for all scopes.
type origins struct {
	tracer      trace.Tracer     // nil if traces go nowhere
	gcTuner     *process.GCTuner // nil: the runtime is not tuned
	log         *slog.Logger
	history     *history.History
	credentials *certs.Store
	// newest is the newest generation: sources are opened as it says.
	newest atomic.Pointer[generation]
	// fleet is the fleet that the relay is a member of, nil if it is alone.
	fleet *atomic.Pointer[membership]
	// chains has the relays that the streams of each scope announce.
	chains  *chain.Table[cache.Scope]
	guards  *guards
	reached reached
	// reachability has the unreachable scopes.
	reachability *feed.Reachability
	// cache has the resources from which a stream to another server may resume, and knows which topics small clients
	// watch.
	cache    sink
	rollouts *gate.Controller
	// nodes, if not nil, are the Nodes of partitions.
	nodes *partition.Nodes

	// opened, if not nil, is called after a source of xdstp names from servers was opened. It does not block.
	opened func()

	// answered, if not nil, is called when a control plane has answered a type on a new stream. It does not block.
	answered func(scope cache.Scope, typeURL string)

	mu      sync.Mutex
	conns   map[place]*sharedConn
	streams map[cache.Scope]*serverSource
	room    cache.Room // of streams
	// patterns are those scopes of xdstp names in streams whose authorities a pattern covers.
	patterns     map[cache.Scope]struct{}
	patternsRoom cache.Room
}

// sink is the cache.
type sink interface {
	feed.Cache
	HasSmallClient(k cache.Key, most int64) bool
	Requests() *cache.Requests
	GiveUpIdle(match func(cache.Scope) bool) bool
	DropIdle(scope cache.Scope, within time.Duration)
}

// newOrigins returns origins without a generation. They connect to nothing yet.
func newOrigins(cfg *configs.Config, credentials *certs.Store, sink sink, rollouts *gate.Controller, kept *history.History, log *slog.Logger) *origins {
	s := &origins{
		log: log, history: kept, credentials: credentials, rollouts: rollouts, cache: sink,
		chains:       chain.NewTable[cache.Scope](cfg.Node.ID, cfg.Cache.Linger),
		conns:        map[place]*sharedConn{},
		reachability: feed.NewReachability(),
		fleet:        new(atomic.Pointer[membership]),
		streams:      map[cache.Scope]*serverSource{},
		patterns:     map[cache.Scope]struct{}{},
	}
	s.guards = &guards{newest: s.newest.Load, log: log}
	return s
}

// makeRoom closes the streams to a place for one scope that has no clients, so that another scope can open a stream.
// It returns false if there is no such scope.
func (s *origins) makeRoom(at place) bool {
	router := s.newest.Load().router
	return s.cache.GiveUpIdle(func(scope cache.Scope) bool {
		a, ok := router.Source(scope)
		return ok && slices.ContainsFunc(a.Servers, func(server configs.Server) bool { return placeOf(server) == at })
	})
}

// statuses returns the status of every stream.
func (s *origins) statuses() map[cache.Scope][]operator.ServerStatus {
	s.mu.Lock()
	open := maps.Clone(s.streams)
	s.mu.Unlock()
	statuses := make(map[cache.Scope][]operator.ServerStatus, len(open))
	for scope, of := range open {
		statuses[scope] = of.statuses()
	}
	return statuses
}

// streamsOf returns the open source of a scope that has servers, nil if there is none.
func (s *origins) streamsOf(scope cache.Scope) *serverSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[scope]
}

// originFor returns the origin of a scope in the newest generation, nil if the authority is not configured any more.
func (s *origins) originFor(scope cache.Scope) *origin {
	g := s.newest.Load()
	a, ok := g.router.Source(scope)
	if !ok {
		return nil
	}
	return g.origins[a.Name]
}

// isNewest reports whether an origin is part of the newest generation.
func (s *origins) isNewest(o *origin) bool {
	return s.newest.Load().origins[o.authority.Name] == o
}

// fingerprint returns the fingerprint of the source that the newest generation would open for a scope.
func (s *origins) fingerprint(scope cache.Scope) string {
	if o := s.originFor(scope); o != nil {
		return routedFingerprint(o, s.route(scope, o))
	}
	return ""
}

// planeOf returns a comparable value that identifies the control plane of a scope: the one that the relay tries
// first. It is nil if the scope has none, or comes from another member of the fleet.
func (s *origins) planeOf(scope cache.Scope) any {
	if o := s.originFor(scope); o != nil && len(o.servers) > 0 && s.route(scope, o).from == nil {
		return o.servers[0].conn
	}
	return nil
}

// open returns the source of a scope, and its fingerprint. node is the Node that the source sends: see
// partition.NodeFor. It is nil for xdstp names: then the source sends the relay's own Node.
func (s *origins) open(scope cache.Scope, node *corev3.Node) (source, string) {
	o := s.originFor(scope)
	if o == nil {
		return newRefusingSource(scope, s.cache), ""
	}
	s.enter(o)
	if o.rollout != nil {
		s.rollouts.Opened(scope, o.rollout)
	}
	if o.directory != nil {
		return &directoryScope{directorySource: o.directory, scope: scope, origin: o, origins: s}, o.fingerprint
	}
	if node == nil {
		node = o.node
	}
	r := s.route(scope, o)
	f := s.openServers(scope, o, r, node)
	s.mu.Lock()
	s.streams[scope] = f
	s.noteOpened(scope, o)
	s.mu.Unlock()
	if o.rollout != nil {
		s.rollouts.RejectsTo(scope, f)
	}
	return f, routedFingerprint(o, r)
}

// noteOpened notes that a source from servers was opened. The caller holds mu.
func (s *origins) noteOpened(scope cache.Scope, o *origin) {
	if scope.OldStyle || scope != partition.Of(scope) {
		return
	}
	if o.authority.IsPattern() {
		s.patterns[scope] = struct{}{}
	}
	if s.opened != nil {
		s.opened()
	}
}
