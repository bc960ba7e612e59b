package configs

// This file is the values of what a configuration leaves out.

import (
	"fmt"
	"os"
	"time"
)

const (
	// The size that gRPC servers accept unless told otherwise, and so the size
	// that clients keep to.
	defaultMaxRequestBytes = 4 << 20
	// Far more than a proxy asks for by name, and less than fits into a few
	// requests.
	defaultSubscriptions = 100_000
	defaultNameBytes     = 4 << 10
	// A client sends a request for each response, and one for each name that it
	// comes to need: many when it starts, few later.
	defaultRequestsPerSecond = 1000
	defaultRequestBurst      = 5000
	// More authorities than anybody refers to, and more nodes than anybody asks for over
	// one connection, but for relays.
	defaultScopes              = 100
	defaultScopesPerConnection = 1000
	// A few GiB of memory at most, as long as they are quiet.
	defaultStreams = 100_000
	// As many as streams: most clients have a connection each. The process may have
	// descriptors for less.
	defaultConnections = 100_000
	// A client has a few streams, a relay or a proxy thousands when it comes back.
	defaultStreamsPerSecond = 500
	// Pollers and health checks may make a connection each time; herds come back once.
	defaultConnectionsPerSecond = 200

	// Just below the 4 MiB that gRPC servers read unless told otherwise.
	defaultServerMaxRequestBytes = 4<<20 - 64<<10
	// Just below what gRPC clients receive unless told otherwise.
	defaultListenerMaxResponseBytes = 4<<20 - 16<<10
	// A SotW response holds every resource of its type at once: tens of
	// thousands of clusters or endpoints are tens of megabytes.
	defaultMaxResponseBytes = 64 << 20

	// For many quiet clients: a dead one is found within minutes, and 100,000
	// live ones cost less than 1,000 pings a second.
	defaultListenerKeepaliveTime = 2 * time.Minute
	// gRPC servers close connections that ping more often than every five
	// minutes, unless they are configured not to.
	defaultServerKeepaliveTime = 5 * time.Minute
	defaultKeepaliveTimeout    = 20 * time.Second
	// A dead connection is replaced 20 seconds after a request that it swallowed, and
	// a control plane that has nothing to say is called once after each request.
	defaultProbeAfter   = 10 * time.Second
	defaultProbeTimeout = 10 * time.Second

	// More than clients ever send that is not taken at once. (Of a request that is
	// longer gRPC lets the rest come when the relay takes its beginning.)
	defaultListenerWindow = 1 << 20
	// Most requests are ACKs, of a few hundred bytes; with TLS every connection
	// holds this much.
	defaultReadBuffer  = 4 << 10
	defaultWriteBuffer = 32 << 10
	// One connection has all streams to a server: with 100 ms for a round trip it is
	// read at 40 MB a second.
	defaultServerStreamWindow     = 1 << 20
	defaultServerConnectionWindow = 4 << 20

	defaultPollInterval = 5 * time.Second
	// For servers that hold a request until there is something new.
	defaultRequestTimeout = time.Minute

	// Long enough that quiet clients cost little, and shorter than the idle
	// timeouts of what may be in between. Clients that say how long they wait, as
	// Envoy does, are answered before that.
	defaultLongPoll = 30 * time.Second

	defaultBackoffBase = time.Second
	// Shorter than gRPC's two minutes: nothing new reaches any client until
	// the relay is back, and there is one connection, not one per client.
	defaultBackoffMax = 30 * time.Second

	// What the protocol has clients wait for a resource.
	defaultFailoverTimeout = 15 * time.Second
	// Longer than the restart of a control plane.
	defaultFailoverGrace = 30 * time.Second
	// Longer than a server that crashes as soon as it has been asked is up.
	defaultFailoverHysteresis = 5 * time.Second

	defaultCluster     = "xds-relay"
	defaultLinger      = 5 * time.Minute
	defaultIdleEntries = 10000
	// As many streams upstream.
	defaultIdleScopes = 100
	// Longer than clients take to come back, and at some 200 bytes each no more
	// than 2 MB for a glob that loses all of its members.
	defaultTombstoneTTL   = 10 * time.Minute
	defaultTombstoneLimit = 10000
)

// setDefaults fills in what c leaves out. Zero means left out: where it could
// be written, the checks of shape.go refuse it; of a boolean, source says.
func (c *Config) setDefaults() {
	for i := range c.Listeners {
		l := &c.Listeners[i]
		setDefault(&l.Protocol, ListenerGRPC)
		setDefault(&l.LongPoll, defaultLongPoll)
		setDefault(&l.MaxRequestBytes, defaultMaxRequestBytes)
		setDefault(&l.MaxResponseBytes, defaultListenerMaxResponseBytes)
		setDefault(&l.Redirects, RedirectsFollow)
		setDefault(&l.Limits.Subscriptions, defaultSubscriptions)
		setDefault(&l.Limits.NameBytes, defaultNameBytes)
		setDefault(&l.Limits.RequestsPerSecond, defaultRequestsPerSecond)
		setDefault(&l.Limits.RequestBurst, defaultRequestBurst)
		setDefault(&l.Limits.Streams, defaultStreams)
		setDefault(&l.Limits.Scopes, defaultScopes)
		setDefault(&l.Limits.Connections, defaultConnections)
		setDefault(&l.Limits.ConnectionsPerSecond, defaultConnectionsPerSecond)
		setDefault(&l.Keepalive.Time, defaultListenerKeepaliveTime)
		setDefault(&l.Keepalive.Timeout, defaultKeepaliveTimeout)
		if l.Protocol == ListenerGRPC {
			setDefault(&l.Limits.ScopesPerConnection, defaultScopesPerConnection)
			setDefault(&l.WhenUnreachable, UnreachableAuto)
			setDefault(&l.Limits.StreamsPerSecond, defaultStreamsPerSecond)
			setDefault(&l.Windows.Stream, defaultListenerWindow)
			setDefault(&l.Windows.Connection, defaultListenerWindow)
			setDefault(&l.Buffers.Read, defaultReadBuffer)
			setDefault(&l.Buffers.Write, defaultWriteBuffer)
		}
	}
	setDefault(&c.Node.ID, hostname())
	setDefault(&c.Node.Cluster, defaultCluster)
	for i := range c.Authorities {
		f := &c.Authorities[i].Failover
		setDefault(&f.Policy, PolicyMissing)
		setDefault(&f.Timeout, defaultFailoverTimeout)
		setDefault(&f.Grace, defaultFailoverGrace)
		setDefault(&f.Hysteresis, defaultFailoverHysteresis)
		for j := range c.Authorities[i].Servers {
			s := &c.Authorities[i].Servers[j]
			setDefault(&s.Protocol, ProtocolAuto)
			if s.Protocol == ProtocolREST {
				setDefault(&s.PollInterval, defaultPollInterval)
				setDefault(&s.RequestTimeout, defaultRequestTimeout)
			} else if !c.source.has(fmt.Sprintf("authorities[%d].servers[%d].aggregated", i, j)) {
				s.Aggregated = true
			}
			if s.Protocol != ProtocolREST {
				setDefault(&s.Windows.Stream, defaultServerStreamWindow)
				setDefault(&s.Windows.Connection, defaultServerConnectionWindow)
			}
			if s.Protocol.delta() && !c.source.has(fmt.Sprintf("authorities[%d].servers[%d].globs", i, j)) {
				s.Globs = true
			}
			setDefault(&s.MaxRequestBytes, defaultServerMaxRequestBytes)
			setDefault(&s.MaxResponseBytes, defaultMaxResponseBytes)
			setDefault(&s.Keepalive.Time, defaultServerKeepaliveTime)
			setDefault(&s.Keepalive.Timeout, defaultKeepaliveTimeout)
			setDefault(&s.Probe.After, defaultProbeAfter)
			setDefault(&s.Probe.Timeout, defaultProbeTimeout)
			setDefault(&s.Backoff.Base, defaultBackoffBase)
			setDefault(&s.Backoff.Max, defaultBackoffMax)
		}
	}
	if !c.source.has("cache.linger") {
		c.Cache.Linger = defaultLinger
	}
	setDefault(&c.Cache.IdleEntries, defaultIdleEntries)
	setDefault(&c.Cache.IdleScopes, defaultIdleScopes)
	setDefault(&c.Cache.Tombstones.TTL, defaultTombstoneTTL)
	setDefault(&c.Cache.Tombstones.Limit, defaultTombstoneLimit)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// hostname tells replicas apart in a control plane's logs. A host without a
// name is no reason not to start.
func hostname() string {
	if name, err := os.Hostname(); err == nil && name != "" {
		return name
	}
	return "xds-relay"
}
