package relay

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/store"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// The source of a scope: streams to the servers of its authority, one or several by priority.

// connectWithin bounds the time in which one of several servers must open a stream. Clients' streams end a little
// later, so clients notice within 5 s.
const connectWithin = 4 * time.Second

// openServer opens the streams of a scope to one server.
func (s *origins) openServer(scope cache.Scope, of *origin, i int, node *corev3.Node, o upstream.Options, sink upstream.Sink, first *firstAnswer) streams {
	server := of.servers[i].config
	o.Watch = first.before(o.Watch)
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
	if server.Aggregated {
		return upstream.NewAggregated(scope, of.servers[i].conn, node, o, sink, s.log)
	}
	return upstream.NewStreams(scope, of.servers[i].conn, node, o, sink, s.log)
}

// openGuarded opens the source of a scope from its authority's servers. Their updates go through the guard, and, if
// there is a store, then through a keeper.
func (s *origins) openGuarded(scope cache.Scope, o *origin, node *corev3.Node) *guardedSource {
	links := &guard.Links{}
	settings := s.guards.settings()
	settings.Waits = func(set cache.Key, since time.Time) time.Time { return links.Waits(set.TypeURL, since) }
	first := newFirstAnswer()
	if o.store == nil {
		v := &valve{to: s.gated(o, s.cache)}
		g := guard.New(v, s.cache, settings)
		return &guardedSource{s.openServers(scope, o, node, g, links, nil, first), g, v, first}
	}
	k := store.NewKeeper(o.store.Store, scope, s.cache, o.store.keeps())
	settings.Stored = k.Stored
	v := &valve{to: s.gated(o, k)}
	g := guard.New(v, s.cache, settings)
	return &guardedSource{&keptSource{s.openServers(scope, o, node, g, links, k, first), k}, g, v, first}
}

// openServers opens the source of a scope from its authority's servers, which write to g. keeper is
// nil if there is no store. first notes the first answer of a server.
func (s *origins) openServers(scope cache.Scope, of *origin, node *corev3.Node, g *guard.Guard, links *guard.Links, keeper *store.Keeper, first *firstAnswer) serverSource {
	a := of.authority
	recall := func(o *upstream.Options, server *configs.Server) {
		if keeper != nil {
			o.Recall = keeper.Recall(server.Address, a.Failover.SharedVersions)
		}
	}
	unreachable := a.Failover.Policy == configs.PolicyUnreachable
	o := failover.Options{
		Unreachable: unreachable,
		Grace:       a.Failover.Grace,
		Timeout:     a.Failover.Timeout,
		Hysteresis:  a.Failover.Hysteresis,
		Switches:    of.counts.switches,
	}
	if len(a.Servers) == 1 {
		f := &singleServer{server: &a.Servers[0]}
		f.single = failover.NewSingle(scope, f.server.Address, o, s.reachability)
		o := upstream.Options{Watch: watchBy(f.single), Links: linksOf{links, 0}, ForceAnswer: unreachable}
		recall(&o, f.server)
		f.streams = s.openServer(scope, of, 0, node, o, g, first)
		return f
	}
	if !slices.ContainsFunc(a.Servers, func(server configs.Server) bool { return server.Protocol == configs.ProtocolREST }) {
		o.ConnectTimeout = connectWithin // with REST there is no stream before the first response
	}
	open := func(i int, child *failover.Child) failover.ServerSource {
		o := upstream.Options{Watch: watchBy(child), Links: linksOf{links, i}, ForceAnswer: unreachable, WithExpiresAt: true}
		if a.Failover.SharedVersions {
			o.Seed = child.Seed(g)
		}
		recall(&o, &a.Servers[i])
		return s.openServer(scope, of, i, node, o, child, first)
	}
	names := make([]string, len(a.Servers))
	for i := range a.Servers {
		names[i] = a.Servers[i].Address
	}
	return &serverGroup{authority: a, Group: failover.NewGroup(scope, names, open, o, g, s.reachability, s.log)}
}

// Reject implements gate.Rejecter.
func (f *serverGroup) Reject(typeURL, version, words string) {
	for _, st := range f.Status() {
		if st.Active {
			st.Feed.(streams).Reject(typeURL, version, words)
		}
	}
}

// PassOn implements serverSource.
func (f *serverGroup) PassOn(typeURL, words string) {
	for _, st := range f.Status() {
		if st.Active {
			st.Feed.(streams).PassOn(typeURL, words)
		}
	}
}

// watchBy returns a function that passes the events of a server's streams to failover.
func watchBy(receiver interface{ Event(failover.Event) }) func(upstream.Event) {
	kinds := map[upstream.EventKind]failover.EventKind{
		upstream.Opened: failover.Opened, upstream.Responded: failover.Responded,
		upstream.Lost: failover.Lost, upstream.Failed: failover.Failed,
	}
	return func(e upstream.Event) {
		if kind, ok := kinds[e.Kind]; ok {
			receiver.Event(failover.Event{Kind: kind, Reason: e.Reason})
		}
	}
}

// singleServer is the source of a scope whose authority has one server.
type singleServer struct {
	streams
	single *failover.Single
	server *configs.Server
}

// Close implements source.
func (f *singleServer) Close() {
	f.streams.Close()
	<-f.Done()
	f.single.Close()
}

// Resume implements cache.Resumer.
func (f *singleServer) Resume(k cache.Key) { cache.Resume(f.streams, k) }

// Adopt implements cache.Adopter.
func (f *singleServer) Adopt(k cache.Key) { cache.Adopt(f.streams, k) }

func (f *singleServer) statuses() []serverStatus { return statusesOf(f.streams, f.server, true) }

// serverGroup is the source of a scope whose authority has several servers.
type serverGroup struct {
	*failover.Group
	authority *configs.Authority
}

func (f *serverGroup) statuses() (all []serverStatus) {
	for _, st := range f.Status() {
		all = append(all, statusesOf(st.Feed.(streams), &f.authority.Servers[st.Server], st.Active)...)
	}
	return all
}

// Resume implements cache.Resumer.
func (f *openSource) Resume(k cache.Key) { cache.Resume(f.guardedSource, k) }

// Adopt implements cache.Adopter.
func (f *openSource) Adopt(k cache.Key) { cache.Adopt(f.guardedSource, k) }
