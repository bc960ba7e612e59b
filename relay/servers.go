package relay

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/internal/partition"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// The source of a scope: streams to the servers of its authority, one or several by priority.

// connectWithin bounds the time in which one of several servers must open a stream. Clients' streams end a little
// later, so clients notice within 5 s.
const connectWithin = 4 * time.Second

// openServer opens the streams of a scope to one server: one for all types, or one for each. conn is its connection.
func (s *origins) openServer(scope cache.Scope, of *origin, to originServer, conn grpc.ClientConnInterface, node *corev3.Node, o upstream.Options, link delivery.Receiver) feed.Source {
	server := to.config
	o.Protocol = protocolFor(*server, node)
	o.BackoffBase, o.BackoffMax = server.Backoff.Base, server.Backoff.Max
	o.MaxRequestBytes, o.Modest = int(server.MaxRequestBytes), s.cache.HasSmallClient
	o.ClientRequests = s.cache.Requests()
	o.NoGlobs = !server.Globs
	o.NodeOnce = server.Node == configs.NodeFirstRequest
	o.Answers = map[configs.SotWAnswers]session.Answers{
		configs.SotWAnswersAuto: session.AnswersAuto, configs.SotWAnswersKnown: session.AnswersKnown,
	}[server.SotWAnswers]
	o.DropIdle = s.cache.DropIdle
	o.Speaks = func(authority string) bool { return to.speaks(s.newest.Load().router, of, authority) }
	o.ResourceErrors, o.Tracer = of.counts.errors, s.tracer
	o.Presence, o.Tally = to.presence, of.counts.tally
	o.Chain = s.chains.Of(partition.Of(scope))
	if s.nodes != nil {
		o.Nodes = s.nodes.NodesOf(scope)
	}
	if server.Aggregated {
		return upstream.NewAggregated(scope, conn, node, o, link, s.log)
	}
	return upstream.NewStreams(scope, conn, node, o, link, s.log)
}

// sharesVersions reports whether equal versions of an authority's resources mean equal contents, wherever they come from.
func sharesVersions(m *membership, a *configs.Authority) bool {
	return a.Failover.SharedVersions || m != nil && len(a.Servers) == 1
}

// resumes is scopes.resumes: the scope moves within the fleet.
func (s *origins) resumes(scope cache.Scope, present string) bool {
	m, o := s.fleet.Load(), s.originFor(scope)
	return m != nil && o != nil && present != o.fingerprint && originPart(present) == o.fingerprint && sharesVersions(m, o.authority) &&
		!slices.ContainsFunc(o.authority.Servers, func(s configs.Server) bool { return s.Protocol != configs.ProtocolDelta })
}

// openServers opens the source of a scope from its authority's servers, or from a member of the fleet if r has one.
func (s *origins) openServers(scope cache.Scope, of *origin, r route, node *corev3.Node) *serverSource {
	from := r.from
	a := of.authority
	unreachable := a.Failover.Policy == configs.PolicyUnreachable
	f := &serverSource{scope: scope, origins: s, origin: of, servers: of.servers, route: r}
	if from != nil {
		f.servers = []originServer{from.Conn.(*peerConn).server}
	}
	o := feed.Options{
		Guard: s.guards.settings(), Cache: s.cache, Rollouts: s.rollouts, Rollout: of.rollout, Reachability: s.reachability, History: s.history.Authority(a.Name), Log: s.log,
		Servers: feed.Servers{Scope: scope, Failover: failover.Options{
			Unreachable: unreachable,
			Grace:       a.Failover.Grace,
			Timeout:     a.Failover.Timeout,
			Hysteresis:  a.Failover.Hysteresis,
			Switches:    of.counts.switches,
		}},
	}
	if s.answered != nil {
		o.Servers.Answered = func(typeURL string) { s.answered(scope, typeURL) }
	}
	if of.store != nil {
		o.Store, o.StoreWaits = of.store.Store, of.store.keeps()
	}
	several, polled := len(f.servers) > 1, false
	for _, server := range f.servers {
		o.Servers.Names = append(o.Servers.Names, server.config.Address)
		polled = polled || server.config.Protocol == configs.ProtocolREST
	}
	// In a fleet, a scope may have come from elsewhere before, with the versions of the authority's server.
	m := s.fleet.Load()
	shared := sharesVersions(m, a)
	if from == nil { // a member of the fleet passes on the versions that its clients see
		names, home, heard := o.Servers.Names, of.counts.home, of.counts.homeHeard
		o.Servers.Foreign = func(i int) bool {
			if names[i] == home || shared && slices.Contains(names, home) {
				heard.Store(true)
				return false
			}
			return heard.Load()
		}
	}
	notGiven := func() { from.Fleet().NotGiven(scope, from) }
	switch {
	case r.state:
		o.Servers.Failed = func(string) { notGiven() }
	case from != nil:
		o.Servers.Failed = func(reason string) { from.Fleet().Refused(scope, from, reason) }
	}
	if several && !polled {
		o.Servers.Failover.ConnectTimeout = connectWithin // with REST there is no stream before the first response
	}
	o.Servers.Open = func(i int, to *feed.Link) feed.Source {
		so := upstream.Options{ForceAnswer: unreachable, WithExpiresAt: several}
		if shared && (several || m != nil) {
			so.Seed = to.Seed
		}
		server := f.servers[i]
		if of.store != nil {
			so.Recall = to.Recall(server.config.Address, shared)
		}
		conn, receiver := grpc.ClientConnInterface(server.conn), delivery.Receiver(to)
		switch {
		case r.state:
			conn = fleet.ForState(conn, scope, func() { from.Fleet().Giving(scope, from) }, notGiven)
			receiver = gift{to, func() { from.Fleet().Given(scope, from) }}
		case from != nil:
			conn = fleet.ForScope(conn, scope, fleet.MemberHeader, from.Fleet().Address())
		}
		return s.openServer(scope, of, server, conn, node, so, receiver)
	}
	f.Feed = feed.New(o)
	return f
}

// protocolFor returns the protocol that the relay speaks with a server for a Node.
//
// Istio recognizes proxyless gRPC by GENERATOR in the Node's metadata. With such a Node, its
// delta server forgets the clusters and listeners of earlier requests and does not send
// their changes. So the relay speaks SotW, as these clients do with Istio.
func protocolFor(s configs.Server, node *corev3.Node) upstream.Protocol {
	if s.Protocol == configs.ProtocolAuto && node.GetMetadata().GetFields()["GENERATOR"].GetStringValue() == "grpc" {
		return upstream.AutoSotW
	}
	return upstream.Protocol(s.Protocol)
}
