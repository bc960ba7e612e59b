package relay

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/upstream"
)

// The source of a scope from the servers of its authority: one server, or several by
// priority.

// connectWithin is how long it may take until one of several servers has opened a stream. With
// the time until a client's stream ends, clients know within 5 s.
const connectWithin = 4 * time.Second

// serverSource is the source of a scope whose authority has servers.
type serverSource interface {
	source
	statuses() []serverStatus
}

// serverStatus is that of a stream, and of which server it is.
type serverStatus struct {
	upstream.Status
	server *configs.Server
	active bool // what the server says is what clients are told
}

// openServers opens the source of a scope from its authority's servers.
func (s *origins) openServers(scope cache.Scope, a *configs.Authority, node *corev3.Node) serverSource {
	unreachable := a.Failover.Policy == configs.PolicyUnreachable
	o := failover.Options{
		Unreachable: unreachable,
		Grace:       a.Failover.Grace,
		Timeout:     a.Failover.Timeout,
		Hysteresis:  a.Failover.Hysteresis,
		Switches:    s.switches[a],
	}
	if len(a.Servers) == 1 {
		f := &singleFeed{server: &a.Servers[0]}
		f.single = failover.NewSingle(scope, f.server.Address, o, s.reachability)
		f.streams = s.openServer(scope, a, f.server, node, upstream.Options{Watch: watch(f.single), ForceAnswer: unreachable}, s.sink)
		return f
	}
	if !slices.ContainsFunc(a.Servers, func(server configs.Server) bool { return server.Protocol == configs.ProtocolREST }) {
		o.ConnectTimeout = connectWithin // what is polled has no stream before its first answer
	}
	open := func(i int, child *failover.Child) failover.Feed {
		o := upstream.Options{Watch: watch(child), ForceAnswer: unreachable, TellEnds: true}
		if a.Failover.SharedVersions {
			o.Seed = child.Seed(s.held)
		}
		return s.openServer(scope, a, &a.Servers[i], node, o, child)
	}
	names := make([]string, len(a.Servers))
	for i := range a.Servers {
		names[i] = a.Servers[i].Address
	}
	return &serverGroup{authority: a, Group: failover.NewGroup(scope, names, open, o, s.sink, s.reachability, s.log)}
}

// watch tells failover what becomes of a server.
func watch(to interface{ Event(failover.Event) }) func(upstream.Event) {
	kinds := map[upstream.EventKind]failover.EventKind{
		upstream.Opened: failover.Opened, upstream.Responded: failover.Responded,
		upstream.Lost: failover.Lost, upstream.Failed: failover.Failed,
	}
	return func(e upstream.Event) {
		if kind, ok := kinds[e.Kind]; ok {
			to.Event(failover.Event{Kind: kind, Reason: e.Reason})
		}
	}
}

// singleFeed feeds a scope from the only server of its authority.
type singleFeed struct {
	streams
	single *failover.Single
	server *configs.Server
}

// Close implements source.
func (f *singleFeed) Close() {
	f.streams.Close()
	<-f.Done()
	f.single.Close()
}

// Resume implements cache.Resumer.
func (f *singleFeed) Resume(k cache.Key) { cache.Resume(f.streams, k) }

func (f *singleFeed) statuses() []serverStatus { return statusesOf(f.streams, f.server, true) }

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

func statusesOf(of streams, server *configs.Server, active bool) (all []serverStatus) {
	for _, st := range of.Statuses() {
		all = append(all, serverStatus{Status: st, server: server, active: active})
	}
	return all
}
