package relay

// The relay as a member of a fleet: from which member it gets a scope, and its door for the others.

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/internal/fleet/etcd"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/partition"
	"github.com/xds-relay/xds-relay/upstream"
)

// membership is the relay's part in a fleet.
type membership struct {
	*fleet.Fleet
	config      configs.Fleet // but for the members
	members     string        // a fingerprint of where the members' addresses come from; Relay.reloading guards it
	self        string
	credentials *certs.Part
	wake        chan struct{} // has a value when moves has scopes
	ended       chan struct{} // closed by close
	moving      sync.WaitGroup

	mu    sync.Mutex // comes last
	moves moves
}

// moves are the scopes that may come from elsewhere now: all, or some.
type moves struct {
	all    bool
	scopes map[cache.Scope]struct{}
}

// note notes that scopes may come from elsewhere, all if there are none.
func (m *membership) note(scopes ...cache.Scope) {
	m.mu.Lock()
	m.moves.all = m.moves.all || len(scopes) == 0
	for _, scope := range scopes {
		if m.moves.scopes == nil {
			m.moves.scopes = map[cache.Scope]struct{}{}
		}
		m.moves.scopes[scope] = struct{}{}
	}
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default: // it has one already
	}
}

// take returns what was noted since the last call.
func (m *membership) take() (noted moves) {
	m.mu.Lock()
	defer m.mu.Unlock()
	noted, m.moves = m.moves, moves{}
	return noted
}

// startsTogether is how long the relay waits at its start, before it serves clients, and before a reload to another fleet,
// until it knows which members are there. Otherwise the first clients' scopes would come from the control planes, and then move.
const startsTogether = time.Second

// planFleet returns the relay's part in the fleet of a configuration: the present one if only the list of members has
// changed, nil without a fleet. address is that of the listener for peers.
func (r *Relay) planFleet(cfg *configs.Config, address string) *membership {
	if cfg.Fleet == nil {
		return nil
	}
	self := cmp.Or(cfg.Fleet.Advertise, address)
	if m := r.fleet.Load(); m != nil && m.self == self && fingerprintOfFleet(m.config) == fingerprintOfFleet(*cfg.Fleet) {
		return m
	}
	m := &membership{config: *cfg.Fleet, self: self, credentials: r.credentials.Part(), wake: make(chan struct{}, 1), ended: make(chan struct{})}
	m.Fleet = fleet.New(fleet.Options{
		Name: m.config.Name, Instance: r.instance, Self: self, Log: r.log,
		Dial:    func(address string) (fleet.Conn, error) { return r.dialPeer(m, address) },
		Changed: m.note,
	})
	return m
}

// settleFleet has a planned part in a fleet follow the members. If it takes the place of another one, settleFleet waits
// until it is known which members are there, but not for long: otherwise all scopes would come from the control planes
// meanwhile.
func (r *Relay) settleFleet(ctx context.Context, cfg *configs.Config, m *membership) {
	if before := r.fleet.Load(); m != nil && before != nil && before != m {
		m.follow(cfg.Fleet)
		m.await(ctx)
	}
}

// follow has the members come from where a configuration says.
func (m *membership) follow(f *configs.Fleet) {
	if members := configs.Fingerprint(f.Members); m.members != members {
		m.members = members
		m.Follow(m.membersOf(f))
	}
}

// fingerprintOfFleet is equal for fleets that differ only in their lists of members.
func fingerprintOfFleet(f configs.Fleet) string {
	f.Members, f.Listen = configs.FleetMembers{}, ""
	return configs.Fingerprint(f)
}

// undoFleet closes what planFleet has made.
func (r *Relay) undoFleet(m *membership) {
	if m != nil && m != r.fleet.Load() {
		m.close()
	}
}

func (m *membership) close() {
	m.Fleet.Close()
	close(m.ended)
	m.moving.Wait()
	m.credentials.Close()
}

// commitFleet has the relay be a member of the fleet of a configuration from now on, or of none.
func (r *Relay) commitFleet(cfg *configs.Config, m *membership) {
	before := r.fleet.Swap(m)
	r.peerStreams.check(cache.Scope{})
	if before != nil && (m == nil || before.config.Name != m.config.Name) {
		r.peersHealth.SetServingStatus(fleet.ServiceOf(before.config.Name), healthpb.HealthCheckResponse_NOT_SERVING)
	}
	if m != nil {
		if before != m {
			m.moving.Go(func() { r.moveScopes(m) })
		}
		m.follow(cfg.Fleet)
		for i := range cfg.Authorities {
			if a := &cfg.Authorities[i]; a.Rollout != nil {
				r.log.Warn("each relay of the fleet makes its own rollout, and keeps what it holds back also from relays that get a scope from it", "authority", a.Name)
			}
		}
		r.peersHealth.SetServingStatus(fleet.ServiceOf(m.config.Name), healthpb.HealthCheckResponse_SERVING)
	}
	if before != nil && before != m {
		r.scopes.replaceOutdated(r.origins.fingerprint, r.cache.EachTopic)
		r.ending.Go(before.close)
	}
}

// membersOf returns where the members' addresses come from.
func (m *membership) membersOf(f *configs.Fleet) fleet.Members {
	switch {
	case f.Members.Etcd != nil:
		return etcdMembers{m, f.Members.Etcd}
	case f.Members.DNS != "":
		host, port := f.Members.Port()
		return fleet.DNS{Host: host, Port: port}
	default:
		return fleet.Static(f.Members.Static)
	}
}

// etcd returns the list of members in etcd.
func (m *membership) etcd(c *configs.FleetEtcd) (*etcd.Members, error) {
	members := &etcd.Members{
		Endpoints: c.Endpoints, Folder: c.Prefix + url.PathEscape(m.config.Name) + "/members/", Address: m.self, Lease: c.Lease,
	}
	for _, endpoint := range c.Endpoints {
		server := c.Server(endpoint)
		config, err := serverTLS(m.credentials, server)
		if err != nil {
			return nil, err
		}
		if config == nil {
			continue
		}
		if members.TLS == nil {
			members.TLS = map[string]credentials.TransportCredentials{}
		}
		members.TLS[server.Host()] = credentials.NewTLS(config)
	}
	return members, nil
}

// etcdMembers is the list of members in etcd, once its credentials can be read.
type etcdMembers struct {
	of     *membership
	config *configs.FleetEtcd
}

// Follow implements fleet.Members.
func (e etcdMembers) Follow(ctx context.Context, report func([]string, error)) {
	for {
		members, err := e.of.etcd(e.config)
		if err == nil {
			members.Follow(ctx, report)
			return
		}
		report(nil, err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return
		}
	}
}

// moveScopes moves scopes to other sources whenever the fleet decides so, until the membership ends.
func (r *Relay) moveScopes(m *membership) {
	for {
		select {
		case <-m.wake:
		case <-m.ended:
			return
		}
		noted := m.take()
		switch {
		case r.fleet.Load() != m:
		case noted.all:
			r.scopes.replaceOutdated(r.origins.fingerprint, r.cache.EachTopic)
		default:
			for scope := range noted.scopes {
				r.scopes.replaceIfOutdated(scope, r.origins.fingerprint, r.cache.EachTopic)
			}
		}
	}
}

// await waits until it is known which members are there, but not for long.
func (m *membership) await(ctx context.Context) {
	timer := time.NewTimer(startsTogether)
	defer timer.Stop()
	select {
	case <-m.Settled():
	case <-timer.C:
	case <-ctx.Done():
	}
}

// peerConn is the connection to another member of the fleet.
type peerConn struct {
	*sharedConn
	server originServer
}

// dialPeer returns the connection to another member.
func (r *Relay) dialPeer(m *membership, address string) (fleet.Conn, error) {
	server := m.config.Peer(address)
	var largeResponse func(bytes int)
	if t := r.origins.gcTuner; t != nil {
		largeResponse = t.Expect
	}
	conn, err := dial(*server, m.credentials, nil, largeResponse)
	if err != nil {
		return nil, err
	}
	shared := &sharedConn{connection: conn}
	presence := upstream.NewPresence(address, r.log.With("fleet", m.config.Name))
	return &peerConn{shared, originServer{config: server, conn: shared, presence: presence, member: true}}, nil
}

// route is where a scope comes from: a member of the fleet, or the authority's servers if from is nil.
type route struct {
	from *fleet.Peer
	// state: it is only the present state that comes from the member, before the authority's servers are used.
	state bool
}

// route returns where a scope of an origin comes from.
func (s *origins) route(scope cache.Scope, o *origin) (r route) {
	if m := s.fleet.Load(); m != nil && len(o.servers) > 0 {
		r.from, r.state = m.Route(scope)
	}
	return r
}

// takeOver has the state of a scope come from another member of the fleet first, if the relay owns the scope. The scope
// has no source yet.
func (s *origins) takeOver(scope cache.Scope) {
	if m := s.fleet.Load(); m != nil {
		if o := s.originFor(scope); o != nil && len(o.servers) > 0 {
			m.TakeOver(scope)
		}
	}
}

const (
	// routed is in the fingerprints of sources that are other members of the fleet, before the ID of the member.
	routed = "\npeer "
	// onlyState is at the end of the fingerprints of those that give only the present state.
	onlyState = " state"
)

// routedFingerprint returns the fingerprint of a source: of an origin, and of the member in front of it, if there is one.
func routedFingerprint(o *origin, r route) string {
	switch {
	case r.from == nil:
		return o.fingerprint
	case r.state:
		return fmt.Sprintf("%s%s%d%s", o.fingerprint, routed, r.from.ID, onlyState)
	default:
		return fmt.Sprintf("%s%s%d", o.fingerprint, routed, r.from.ID)
	}
}

// isHandover reports whether a scope has moved to or from another relay. A relay that gets the state of a scope before it
// uses the authority's servers has not.
func isHandover(before, after string) bool {
	return before != after && originPart(before) == originPart(after) && !strings.HasSuffix(before, onlyState)
}

// gift receives the state of a scope from another member.
type gift struct {
	delivery.Receiver
	given func()
}

// Deliver implements delivery.Receiver.
func (g gift) Deliver(e delivery.Event) {
	g.Receiver.Deliver(e)
	if e.Kind == delivery.Delivered {
		g.given()
	}
}

// has reports whether the relay has a resource of a scope.
func (r *Relay) has(scope cache.Scope) (found bool) {
	var topics []cache.Key
	r.cache.EachTopic(scope, func(k cache.Key) { topics = append(topics, k) })
	for _, k := range topics {
		if r.cache.Contents(k, func(string, *cache.Resource) { found = true }); found {
			return true
		}
	}
	return false
}

// originPart returns the part of a fingerprint that does not depend on the fleet.
func originPart(fingerprint string) string {
	part, _, _ := strings.Cut(fingerprint, routed)
	return part
}

// peersDoor is the listener for other members of the fleet.
type peersDoor struct {
	relay *Relay
	door  *downstream.Door
}

// serverOptions make a server that serves nobody but members, and nothing but what they need.
func (d peersDoor) serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(d.call), grpc.ChainStreamInterceptor(d.stream)}
}

// admit refuses callers that are no members.
func (d peersDoor) admit(ctx context.Context) error {
	if _, _, err := d.relay.server.Caller(ctx, d.door); err != nil {
		return err
	}
	if m := d.relay.fleet.Load(); m != nil && m.IsSelf(ctx) {
		return status.Error(codes.AlreadyExists, "the caller is this relay itself")
	}
	return nil
}

func notForPeers(method string) error {
	return status.Errorf(codes.Unimplemented, "%s is not for members of the fleet, for whom this listener is", method)
}

func (d peersDoor) call(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if info.FullMethod != healthpb.Health_Check_FullMethodName && info.FullMethod != fleet.AskMethod {
		return nil, notForPeers(info.FullMethod)
	}
	if err := d.admit(ctx); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (d peersDoor) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx := stream.Context()
	if err := d.admit(ctx); err != nil {
		return err
	}
	switch info.FullMethod {
	case healthpb.Health_Watch_FullMethodName:
		return d.watch(srv, stream, handler)
	case discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName:
	default:
		return notForPeers(info.FullMethod)
	}
	scope, err := fleet.ScopeOf(ctx)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	m := d.relay.fleet.Load()
	if m == nil {
		return status.Error(codes.FailedPrecondition, "this relay is in no fleet any more")
	}
	if err := d.relay.servesScope(scope); err != nil {
		return err
	}
	if fleet.OnlyState(ctx) {
		if !d.relay.has(scope) {
			return status.Error(codes.NotFound, "this relay has nothing of the scope")
		}
		return handler(srv, stream)
	}
	defer m.Serve(scope, fleet.MemberOf(ctx))()
	if err := d.relay.canServe(ctx, scope); err != nil || fleet.IsTrial(ctx) {
		return err
	}
	defer d.relay.joinServed(ctx, scope)()
	return handler(srv, stream)
}

// watch serves the health watch of a member as long as the member is one. For the watcher, this relay is there meanwhile.
func (d peersDoor) watch(srv any, stream grpc.ServerStream, handler grpc.StreamHandler) error {
	check := func() {
		if err := d.admit(stream.Context()); err != nil {
			downstream.End(stream.Context(), err)
		}
	}
	defer d.relay.peerStreams.join(cache.Scope{}, check)()
	check() // a reload may have come before join
	return handler(srv, stream)
}

// servesScope returns why members cannot get a scope from this relay: its configuration may be an older or a newer one.
func (r *Relay) servesScope(scope cache.Scope) error {
	if a, ok := r.now().router.Source(scope); !ok || a.Directory != "" {
		return status.Errorf(codes.FailedPrecondition, "this relay has no servers for the authority %q", scope.Authority)
	}
	return nil
}

// names gives the names that a member requests their meaning: those of topics of the scope that its stream is for.
func (d peersDoor) names(ctx context.Context, c downstream.Client) downstream.Names {
	scope, err := fleet.ScopeOf(ctx)
	n := &peerNames{scope: scope, node: c.Node, nodes: d.relay.scopes.nodes, refused: cmp.Or(err, d.relay.servesScope(scope))}
	n.state = fleet.OnlyState(ctx)
	if len(c.Through.IDs) > 0 && !n.state {
		n.relay = naming.NewRelayClient(c, d.relay.origins.chains)
	}
	return n
}

// peerNames implements downstream.Names and downstream.ScopeUser for another member of the fleet. It is not safe for
// concurrent use. The member decides what its clients may have.
type peerNames struct {
	scope   cache.Scope
	node    *corev3.Node // is the partition's already
	nodes   *partition.Nodes
	joined  bool
	state   bool // the stream is only for the present state: no reason to feed the scope
	member  partition.Member
	refused error // why the member cannot have the scope
	// relay is nil unless clients of the member are relays. Otherwise no loop goes through the member: the streams to the
	// control planes need not announce it.
	relay *naming.RelayClient
}

// Key implements downstream.Names.
func (n *peerNames) Key(typeURL, name string) (cache.Key, error) {
	if n.refused != nil {
		return cache.Key{}, n.refused
	}
	if n.scope.OldStyle && !n.joined && !n.state {
		n.joined = true
		n.member.ID = n.node.GetId()
		n.member.Node = func() *corev3.Node { return n.node }
		n.nodes.Join(partition.Of(n.scope), partition.Client{Member: &n.member, OwnTool: true})
	}
	return cache.Key{Scope: n.scope, TypeURL: typeURL, Name: name}, nil
}

// Enter implements downstream.ScopeUser.
func (n *peerNames) Enter(scope cache.Scope) {
	if n.relay != nil {
		n.relay.Enter(partition.Of(scope))
	}
}

// Leave implements downstream.ScopeUser.
func (n *peerNames) Leave(scope cache.Scope) {
	if n.relay != nil {
		n.relay.Leave(partition.Of(scope))
	}
}

// Loop implements downstream.ScopeUser.
func (n *peerNames) Loop() error {
	if n.relay == nil {
		return n.refused
	}
	return cmp.Or(n.refused, n.relay.Loop())
}

// Close implements downstream.Names.
func (n *peerNames) Close() {
	if n.joined {
		n.nodes.Leave(partition.Of(n.scope), &n.member)
	}
	if n.relay != nil {
		n.relay.Close()
	}
}

// identifyPeer returns downstream.ListenerOptions.Identify for the listener of peers: only members have the id.
func identifyPeer(t *configs.FleetTLS) func(identity.Proof) (*identity.Identity, error) {
	i, admits := &identifier{listener: &configs.Listener{}, ends: t != nil}, admitsPeer(t)
	return func(p identity.Proof) (*identity.Identity, error) {
		id, err := i.identify(p)
		if err == nil {
			err = admits(id)
		}
		if err != nil {
			return nil, err
		}
		return id, nil
	}
}

// admitsPeer returns downstream.ListenerOptions.Admits for the listener of peers.
func admitsPeer(t *configs.FleetTLS) func(*identity.Identity) error {
	return func(id *identity.Identity) error {
		if t == nil || id.SPIFFEID == t.ServerID || hasName(id, t.ServerID) {
			return nil
		}
		return &identity.RefusedError{
			Reason: identity.NotAdmitted, Message: "this listener serves the members of a fleet only",
			Detail: fmt.Sprintf("%s has not the id of the members (fleet.tls.server_id), %s", id, t.ServerID),
		}
	}
}

func hasName(id *identity.Identity, name string) bool {
	for _, n := range id.DNSNames {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}
