package relay

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
)

// Metrics of load reports.

func (r *Relay) loadInstruments() []instrument {
	return []instrument{
		{r.metrics.Gauge, "xds_relay.load_reports.clients", "Open load reporting streams (LRS) of clients.",
			one(func() int { return r.loads.hub.Stats().Clients })},
		{r.metrics.Counter, "xds_relay.load_reports.received", "Load reports received from clients.",
			one(func() uint64 { return r.loads.hub.Stats().Reports })},
		{r.metrics.Counter, "xds_relay.load_reports.discarded", "Parts of clients' load reports that the relay discarded.", r.loadsDiscarded},
		{r.metrics.Counter, "xds_relay.load_reports.sent", "Load reports sent to control planes.",
			func() []admin.Sample { return r.byAuthority(func(c *counts) *atomic.Uint64 { return c.loadReports }) }},
		{r.metrics.Gauge, "xds_relay.load_reports.streams", "Load reporting streams (LRS) to control planes, including those that the relay tries to open.", r.loadStreams},
	}
}

func (r *Relay) loadsDiscarded() []admin.Sample {
	var samples []admin.Sample
	for reason, n := range r.loads.hub.Stats().Discarded {
		samples = append(samples, admin.Sample{Value: int64(n), Labels: []attribute.KeyValue{attribute.String("reason", reason)}})
	}
	return samples
}

func (r *Relay) loadStreams() []admin.Sample {
	type kind struct {
		authority string
		connected bool
	}
	count := map[kind]int64{}
	cfg := r.now().cfg
	for i := range cfg.Authorities {
		if a := &cfg.Authorities[i]; takesLoads(a) {
			count[kind{a.Name, true}] = 0
		}
	}
	for authority, connected := range r.loads.all() {
		for _, is := range connected {
			count[kind{r.labelOf(authority), is}]++
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

// all returns, by authority, whether the control plane has answered on each stream.
func (l *loads) all() map[string][]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string][]bool{}
	for route, stream := range l.streams {
		all[route.scope.Authority] = append(all[route.scope.Authority], stream.Connected())
	}
	return all
}
