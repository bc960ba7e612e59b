package relay

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// The source of a scope: streams to the servers of its authority, one or several by priority.

// connectWithin bounds the time in which one of several servers must open a stream. Clients' streams end a little
// later, so clients notice within 5 s.
const connectWithin = 4 * time.Second

// openServer opens the streams of a scope to one server: one for all types, or one for each.
func (s *origins) openServer(scope cache.Scope, of *origin, i int, node *corev3.Node, o upstream.Options, to *feed.Link) feed.Source {
	server := of.servers[i].config
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
	o.Speaks = func(authority string) bool { return speaks(s.newest.Load().router, server, authority) }
	o.ResourceErrors, o.Tracer = of.counts.errors, s.tracer
	o.Presence, o.Tally = of.servers[i].presence, of.counts.tally
	o.Chain = s.chains.Of(partitionOf(scope))
	if s.nodes != nil {
		o.Nodes = s.nodes.nodesOf(scope)
	}
	if server.Aggregated {
		return upstream.NewAggregated(scope, of.servers[i].conn, node, o, to, s.log)
	}
	return upstream.NewStreams(scope, of.servers[i].conn, node, o, to, s.log)
}

// openServers opens the source of a scope from its authority's servers.
func (s *origins) openServers(scope cache.Scope, of *origin, node *corev3.Node) *serverSource {
	a := of.authority
	unreachable := a.Failover.Policy == configs.PolicyUnreachable
	f := &serverSource{scope: scope, origins: s, origin: of}
	o := feed.Options{
		Guard: s.guards.settings(), Cache: s.cache, Rollouts: s.rollouts, Rollout: of.rollout, Reachability: s.reachability, Log: s.log,
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
	several, polled := len(a.Servers) > 1, false
	for i := range a.Servers {
		o.Servers.Names = append(o.Servers.Names, a.Servers[i].Address)
		polled = polled || a.Servers[i].Protocol == configs.ProtocolREST
	}
	if several && !polled {
		o.Servers.Failover.ConnectTimeout = connectWithin // with REST there is no stream before the first response
	}
	o.Servers.Open = func(i int, to *feed.Link) feed.Source {
		so := upstream.Options{ForceAnswer: unreachable, WithExpiresAt: several}
		if several && a.Failover.SharedVersions {
			so.Seed = to.Seed
		}
		if of.store != nil {
			so.Recall = to.Recall(a.Servers[i].Address, a.Failover.SharedVersions)
		}
		return s.openServer(scope, of, i, node, so, to)
	}
	f.Feed = feed.New(o)
	return f
}
