package relay

// Load reports (LRS): which control plane gets the reports on which clusters of a client, by which server and with
// which Node.

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/partition"
	"github.com/xds-relay/xds-relay/loadreport"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/urn"
)

// reconfigureEvery is the minimum time between reconfigurations of all clients that report. A client causes one when
// it opens a scope.
const reconfigureEvery = time.Second

// clusterType is the type of the clusters that clients report on.
const clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

// loads accepts clients' load reports, and opens the streams to control planes for them.
type loads struct {
	relay *Relay
	hub   *loadreport.Hub
	lines loglines.Shared

	mu      sync.Mutex // the last in the order of locks
	streams map[*loadRoute]*upstream.LoadStream
	// running: a goroutine reconfigures; again: it has to reconfigure once more.
	running, again, closed bool
	closing                chan struct{}
	reconfiguring          sync.WaitGroup
}

func newLoads(r *Relay) *loads {
	l := &loads{relay: r, closing: make(chan struct{}), streams: map[*loadRoute]*upstream.LoadStream{}}
	r.origins.opened = l.reconfigure
	l.hub = loadreport.NewHub(loadreport.Options{Open: l.open, Canonical: l.canonical, Log: r.log})
	return l
}

// Open implements downstream.LoadReports.
func (l *loads) Open(c downstream.LoadClient) (downstream.LoadStream, error) {
	if !slices.ContainsFunc(l.relay.now().cfg.Authorities, func(a configs.Authority) bool { return takesLoads(&a) }) {
		return nil, status.Error(codes.Unimplemented, "no authority takes load reports (see load_reports and servers in the relay's configuration)")
	}
	return l.hub.Open(loadreport.ClientOptions{
		Node: c.Node, Account: c.Account, Enter: c.Enter, Leave: c.Leave,
		Names: func() loadreport.Names { return newLoadNames(l.relay, c.Client) },
	}), nil
}

// Held implements downstream.LoadReports.
func (l *loads) Held(account any) (own, all int64) { return l.hub.Held(account) }

// takesLoads reports whether the relay sends load reports to an authority, provided that its servers accept them.
func takesLoads(a *configs.Authority) bool {
	return a.LoadReports != configs.LoadReportsOff &&
		slices.ContainsFunc(a.Servers, func(s configs.Server) bool { return s.Protocol != configs.ProtocolREST })
}

// reconfigure makes clients and streams use the newest configuration, and the scopes that are open now. It does not
// wait.
func (l *loads) reconfigure() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.again = true
	if l.running || l.closed {
		return
	}
	l.running = true
	l.reconfiguring.Go(func() {
		for l.next() {
			l.hub.Reconfigure()
			select {
			case <-time.After(reconfigureEvery):
			case <-l.closing:
			}
		}
	})
}

// next reports whether something has changed since its last call.
func (l *loads) next() (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	again, l.again = l.again && !l.closed, false
	l.running = again
	return again
}

func (l *loads) close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
	l.mu.Unlock()
	l.hub.Close()
	l.reconfiguring.Wait()
}

// canonical returns the name by which the relay knows a cluster that a control plane names.
func (l *loads) canonical(cluster string) string {
	if to, err := l.relay.now().router.Leaf(cluster); err == nil {
		return to.Key.Name
	}
	return cluster
}

// open implements loadreport.Options.Open.
func (l *loads) open(c *loadreport.Collector, names loadreport.Names) loadreport.Upstream {
	route := &loadRoute{loads: l, scope: c.Scope()}
	if n, ok := names.(*loadNames); ok {
		route.own = n.nodeOf(c.Scope())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	stream := upstream.NewLoadStream(c, route, &l.lines, l.relay.log.With("authority", c.Scope().Authority, "partition", c.Scope().Partition))
	l.streams[route] = stream
	return stream
}

// loadNames maps a client's clusters to scopes. It implements loadreport.Names.
type loadNames struct {
	*naming.Names
	generation *generation
	origins    *origins
	partition  authority.Partition // of its old-style names, unless unknown
	unknown    error
}

func newLoadNames(r *Relay, c downstream.Client) *loadNames {
	g := r.now()
	names := r.namesOf(g, c)
	names.Lines = nil // loadreport logs what is refused
	partition, err := names.Partition(clusterType)
	return &loadNames{names, g, r.origins, partition, err}
}

// mostPatterns bounds the authorities under patterns in Scopes. If there are more, clients report only to those of
// which they have reported a cluster.
const mostPatterns = 64

// Scopes implements loadreport.Names: it returns the client's partition, and authorities of which the client may have
// xdstp names. It is not known which of these the client uses. So it returns the authorities of which any client has
// xdstp names, and those without old-style names.
func (n *loadNames) Scopes() (scopes []cache.Scope) {
	if n.unknown == nil && n.takes(n.partition.Scope) {
		scopes = append(scopes, n.partition.Scope)
	}
	cfg := n.generation.cfg
	for i := range cfg.Authorities {
		a, scope := &cfg.Authorities[i], cache.Scope{Authority: cfg.Authorities[i].Name}
		if a.IsPattern() || !takesLoads(a) {
			continue
		}
		oldStyle := slices.ContainsFunc(cfg.OldStyleNames, func(r configs.Rule) bool { return r.Authority == a.Name })
		if !oldStyle || n.origins.isOpen(scope) {
			scopes = append(scopes, scope)
		}
	}
	for _, scope := range n.origins.openPatterns(mostPatterns) {
		if n.takes(scope) {
			scopes = append(scopes, scope)
		}
	}
	return scopes
}

// isOpen reports whether anyone subscribes to a topic of a scope.
func (s *origins) isOpen(scope cache.Scope) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[scope] != nil
}

// openPatterns returns the open scopes of xdstp names whose authorities patterns cover; none if there are more than
// most.
func (s *origins) openPatterns(most int) (scopes []cache.Scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.patterns) > most {
		return nil
	}
	return slices.Collect(maps.Keys(s.patterns))
}

func (n *loadNames) takes(scope cache.Scope) bool {
	a, ok := n.generation.router.Source(scope)
	return ok && takesLoads(a)
}

// Cluster implements loadreport.Names. It decides as for a subscription to the Cluster, but records nothing: the
// Nodes of load reports differ from those of subscriptions.
func (n *loadNames) Cluster(name string) (cache.Scope, string, error) {
	k, err := n.Meaning(clusterType, name)
	if err != nil {
		return cache.Scope{}, "", err
	}
	if n.ClientRights != nil {
		if err := n.ClientRights.May(k); err != nil {
			return cache.Scope{}, "", err
		}
	}
	scope, canonical := partition.Of(k.Scope), k.Name
	if scope.Derived != "" { // directives are not part of the cluster's name
		u, err := urn.Unfold(name)
		if err != nil {
			return cache.Scope{}, "", err
		}
		scope, canonical = cache.Scope{Authority: u.Key().Authority}, u.Key().Name
	}
	if !n.takes(scope) {
		return cache.Scope{}, "", loadreport.ErrOff
	}
	return scope, canonical, nil
}

// nodeOf returns the Node for the client's reports to a scope, nil for the relay's own.
func (n *loadNames) nodeOf(scope cache.Scope) *corev3.Node {
	if !scope.OldStyle {
		return nil
	}
	return partition.NodeFor(n.partition.Upstream, n.Client.Node)
}

// loadRoute finds the server for the reports of a scope. It implements upstream.LoadRoute.
type loadRoute struct {
	loads *loads
	scope cache.Scope
	// own is the Node of the partition as long as no one subscribes to anything in it; nil for the relay's.
	own *corev3.Node
}

// Target implements upstream.LoadRoute. It returns the active server; while that cannot be reached, also the others
// in turn.
func (l *loadRoute) Target(attempt int) (upstream.LoadTarget, bool) {
	s := l.loads.relay.origins
	o := l.origin()
	if o == nil || !s.tryEnter(o) {
		return upstream.LoadTarget{}, false
	}
	active, connected := s.activeServer(l.scope, o)
	order := []int{active}
	for i := range o.servers {
		if i != active {
			order = append(order, i)
		}
	}
	order = slices.DeleteFunc(order, func(i int) bool { return o.servers[i].config.Protocol == configs.ProtocolREST })
	if connected {
		attempt = 0
	}
	at := order[attempt%len(order)]
	server, node := &o.servers[at], l.node(o)
	return upstream.LoadTarget{
		Conn: server.conn, Presence: server.presence, Node: node, Address: server.config.Address,
		BackoffBase: server.config.Backoff.Base, BackoffMax: server.config.Backoff.Max,
		MaxRequestBytes: int(server.config.MaxRequestBytes),
		Reports:         o.counts.loadReports,
		Leave:           func() { s.leave(o) },
		Current: func() bool {
			if l.origin() != o || !proto.Equal(l.node(o), node) {
				return false
			}
			active, connected := s.activeServer(l.scope, o)
			return !connected || active == at || o.servers[active].config.Protocol == configs.ProtocolREST
		},
	}, true
}

// origin returns the scope's origin in the newest generation, nil if the reports go nowhere. The origin has a server
// that takes load reports.
func (l *loadRoute) origin() *origin {
	g := l.loads.relay.now() // loaded once, because another generation may have other servers
	a, ok := g.router.Source(l.scope)
	if !ok || !takesLoads(a) {
		return nil
	}
	return g.origins[a.Name]
}

// node returns the Node of the scope.
func (l *loadRoute) node(o *origin) *corev3.Node {
	if l.own == nil {
		return o.node
	}
	if node := l.loads.relay.scopes.nodes.Find(l.scope); node != nil {
		return node
	}
	return l.own
}

// Close implements upstream.LoadRoute.
func (l *loadRoute) Close() {
	l.loads.mu.Lock()
	defer l.loads.mu.Unlock()
	delete(l.loads.streams, l)
}

// activeServer returns the index of the origin's server that is active for a scope, and whether that has a stream. It
// returns 0 if no one subscribes to anything in the scope.
func (s *origins) activeServer(scope cache.Scope, o *origin) (at int, connected bool) {
	s.mu.Lock()
	of := s.streams[scope]
	s.mu.Unlock()
	if of == nil {
		return 0, false
	}
	for _, st := range of.statuses() {
		i := slices.IndexFunc(o.servers, func(server originServer) bool { return server.config == st.Server })
		if st.Active && i >= 0 {
			at, connected = i, connected || st.Connected
		}
	}
	return at, connected
}

// tryEnter notes one more use of an origin, unless it is closed.
func (s *origins) tryEnter(o *origin) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.uses == 0 {
		return false
	}
	o.uses++
	return true
}
