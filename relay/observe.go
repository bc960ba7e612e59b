package relay

import (
	"slices"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
)

// observe registers the metrics and the pages of the admin listener.
func (r *Relay) observe() error {
	r.admin = admin.New(r.metrics)
	r.checkReady()
	r.observer = operator.New(r.readers())
	r.observer.Register()
	r.observeStoreExport()

	instruments := []instrument{
		{r.metrics.Gauge, "xds_relay.downstream.streams", "Open streams of clients, plus the requests of polling clients that wait for an answer.",
			one(func() int { return r.server.Clients() })},
		{r.metrics.Counter, "xds_relay.downstream.requests", "Requests from clients, including ACKs and NACKs.",
			one(func() uint64 { return r.server.Stats().Requests })},
		{r.metrics.Counter, "xds_relay.downstream.responses", "Responses sent to clients.",
			one(func() uint64 { return r.server.Stats().Responses })},
		{r.metrics.Counter, "xds_relay.downstream.nacks", "Responses that clients rejected (NACK).",
			one(func() uint64 { return r.server.Stats().NACKs })},
		{r.metrics.Counter, "xds_relay.downstream.unreachable_ends", "Streams that the relay ended because it has none of the requested resources and cannot reach their control planes.",
			one(func() uint64 { return r.server.Stats().Unreachable })},
		{r.metrics.Counter, "xds_relay.downstream.denied_ends", "Streams that the relay ended because the client is not allowed to have any of the resources that it requests.",
			one(func() uint64 { return r.server.Stats().Denied })},
		{r.metrics.Gauge, "xds_relay.downstream.clients_rejecting", "Streams of clients that reject what they were sent of a type, and have not accepted anything since that replaces it.", byLabel("grpc.xds.resource_type", func() map[string]int { return r.server.Stats().Rejecting })},
		{r.metrics.Gauge, "xds_relay.downstream.clients_with_refused_names", "Streams of clients that subscribe to names or wildcards that the relay refuses.", byLabel("reason", func() map[string]int { return r.server.Stats().WithRefused })},
		{r.metrics.Counter, "xds_relay.downstream.names_refused", "Requested names and wildcards that the relay refused.", byLabel("reason", func() map[string]uint64 { return r.server.Stats().Refusals })},
		{r.metrics.Counter, "xds_relay.downstream.clients_refused", "Streams and requests that the relay refused or ended because of the client's identity.", byLabel("reason", func() map[string]uint64 { return r.server.Stats().ClientsRefused })},
		{r.metrics.Counter, "xds_relay.downstream.connections_failed", "Connections to listeners that failed before their first request, because client and listener do not agree on TLS or on the protocol.", byLabel("reason", func() map[string]uint64 { return r.server.Stats().ConnFailures })},
		{r.metrics.Counter, "xds_relay.downstream.limits_exceeded", "Times that a client exceeded a limit.", byLabel("limit", func() map[string]uint64 { return r.server.Stats().Limits })},
		{r.metrics.Gauge, "xds_relay.downstream.admission_waiting", "New streams that wait in line for admission.",
			one(func() int { return r.server.Stats().Admission.Waiting })},
		{r.metrics.Counter, "xds_relay.downstream.admission_waited", "Streams that waited in line for admission until it was their turn.",
			one(func() uint64 { return r.server.Stats().Admission.Waited })},
		{r.metrics.Counter, "xds_relay.downstream.admission_refused", "Streams that the relay refused at admission.", byLabel("reason", func() map[string]uint64 { return r.server.Stats().Admission.Refused })},
		{r.metrics.Counter, "xds_relay.downstream.connections_sent_away", "Connections that the relay ended gracefully, because it was draining or because of their age.", byLabel("reason", func() map[string]uint64 { return r.server.Stats().SentAway })},
		{r.metrics.Gauge, "xds_relay.downstream.lost_listeners", "Listeners that accept no connections because their sockets have failed. The admin listener counts, too.", r.lostListeners},
		{r.metrics.Gauge, "xds_relay.cache.entries", "Resource names in the cache, including those for which the relay has no resource.",
			one(func() int { return r.cache.Stats().Entries })},
		{r.metrics.Gauge, "xds_relay.cache.sets", "Wildcards and globs in the cache.",
			one(func() int { return r.cache.Stats().Sets })},
		{r.metrics.Gauge, "xds_relay.cache.idle", "Names, wildcards and globs in the cache that have no subscriber.",
			one(func() int { return r.cache.Stats().Idle })},
		{r.metrics.Counter, "xds_relay.collections.loops", "Loops that the relay found in redirects and collections.",
			one(r.derived.Loops)},
		{r.metrics.Counter, "xds_relay.collections.duplicate_members", "Members that the relay left out of a view or list because an earlier collection has a different member of the same name.",
			one(r.derived.Clashes)},
		{r.metrics.Counter, "xds_relay.collections.failures", "Times that the relay could not read a collection for a view, or could not use an entry of a collection.",
			one(r.derived.Failures)},
		{r.metrics.Gauge, "xds_relay.upstream.streams", "Streams to control planes, including those that the relay tries to open.", r.upstreamStreams},
		{r.metrics.Gauge, "grpc.xds_client.resources", "Resources that the relay has requested as an xDS client, by cache state.", r.requestedResources},
		{r.metrics.Counter, "xds_relay.upstream.switches", "Times that the relay switched to another server of an authority.",
			func() []admin.Sample { return r.byAuthority(func(c *counts) *atomic.Uint64 { return c.switches }) }},
		{r.metrics.Gauge, "xds_relay.upstream.unreachable", "Partitions for which the relay can reach no server of the authority. A partition counts once for each set of dynamic parameters in use.", r.unreachable},
		{r.metrics.Counter, "xds_relay.upstream.resource_errors", "Errors that control planes sent in the field resource_errors of responses.",
			func() []admin.Sample { return r.byAuthority(func(c *counts) *atomic.Uint64 { return c.errors }) }},
		{r.metrics.Counter, "xds_relay.propagation.not_reached", "Clients that had not been sent a change, or had not acknowledged it, when the relay stopped measuring the change.", r.propagation.notReached},
		{r.metrics.Counter, "xds_relay.check.failures", "Resources from control planes and directories that clients would reject.", r.rejectable},
		{r.metrics.Gauge, "xds_relay.certificate.expiry_timestamp_seconds", "When a certificate expires, as a Unix timestamp in seconds.", r.certificateExpiries},
		{r.metrics.Counter, "xds_relay.certificate.reload_failures", "Failed attempts to read a certificate, a CA, a token or keys.", r.reloadFailures},
		{r.metrics.Gauge, "xds_relay.directory.errors", "Errors in the files of a directory when the relay last read them.", r.directoryErrors},
	}
	for _, i := range slices.Concat(instruments, r.guardInstruments(), r.storeInstruments(), r.rolloutInstruments(), r.reloadInstruments(), r.buildInstruments(), r.loadInstruments(), r.prefetchInstruments(), r.fleetInstruments()) {
		if err := i.add(i.name, i.about, i.read); err != nil {
			return err
		}
	}
	return nil
}

func (r *Relay) upstreamStreams() []admin.Sample {
	type kind struct {
		authority string
		connected bool
	}
	count := map[kind]int64{}
	for scope, of := range r.origins.statuses() {
		for _, st := range of {
			if st.Protocol != "" { // the server has the type
				count[kind{r.labelOf(scope.Authority), st.Connected}]++
			}
		}
	}
	samples := make([]admin.Sample, 0, len(count))
	for k, n := range count {
		samples = append(samples, admin.Sample{Value: n, Labels: []attribute.KeyValue{
			authorityLabel(k.authority), attribute.Bool("connected", k.connected),
		}})
	}
	return samples
}

func (r *Relay) unreachable() []admin.Sample {
	count := map[string]int{}
	for authority, n := range r.origins.reachability.Count() {
		count[r.labelOf(authority)] += n
	}
	var samples []admin.Sample
	for authority, n := range count {
		samples = append(samples, admin.Sample{
			Value:  int64(n),
			Labels: []attribute.KeyValue{authorityLabel(authority)},
		})
	}
	return samples
}

func (r *Relay) directoryErrors() []admin.Sample {
	var samples []admin.Sample
	for name, o := range r.now().origins {
		if o.directory == nil {
			continue
		}
		samples = append(samples, admin.Sample{
			Value:  int64(len(o.directory.Status().Errors)),
			Labels: []attribute.KeyValue{authorityLabel(name)},
		})
	}
	return samples
}

// requestedResources counts what Upstream returns, by authority, type and state. It does not look at each resource.
func (r *Relay) requestedResources() []admin.Sample {
	type kind struct {
		authority, resourceType string
		state                   cache.CacheState
	}
	count := map[kind]int64{}
	r.cache.EachStates(func(scope cache.Scope, typeURL string, counts *cache.StateCounts) {
		if scope.Derived != "" || scope.New {
			return
		}
		for state, n := range counts {
			if n != 0 {
				count[kind{r.labelOf(scope.Authority), xdstype.Label(typeURL), cache.CacheState(state)}] += n
			}
		}
	})
	samples := make([]admin.Sample, 0, len(count))
	for k, n := range count {
		samples = append(samples, admin.Sample{Value: n, Labels: []attribute.KeyValue{
			authorityLabel(k.authority), typeLabel(k.resourceType), attribute.String("grpc.xds.cache_state", k.state.String()),
		}})
	}
	return samples
}
