package relay

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/cache"
)

// Metrics use the label names of gRPC's xDS client where it has the same label. gRFC A78.

// authorityLabel is the label of an authority, by its name in the configuration.
func authorityLabel(name string) attribute.KeyValue {
	return attribute.String("grpc.xds.authority", name)
}

// typeLabel is the label of a resource type, as xdstype.Label has it.
func typeLabel(label string) attribute.KeyValue {
	return attribute.String("grpc.xds.resource_type", label)
}

// instrument is a metric.
type instrument struct {
	add         func(string, string, func() []admin.Sample) error
	name, about string
	read        func() []admin.Sample
}

// one returns a function that reads an instrument with a single value.
func one[N int | uint64](read func() N) func() []admin.Sample {
	return func() []admin.Sample { return []admin.Sample{{Value: int64(read())}} }
}

// byLabel returns a function that reads an instrument with a single label. read returns the instrument's values by the
// label's value.
func byLabel[N int | uint64](label string, read func() map[string]N) func() []admin.Sample {
	return func() []admin.Sample {
		var samples []admin.Sample
		for value, n := range read() {
			samples = append(samples, admin.Sample{Value: int64(n), Labels: []attribute.KeyValue{attribute.String(label, value)}})
		}
		return samples
	}
}

// labelOf returns the label of an authority in metrics: its name in the configuration. Authorities under a pattern have
// the pattern as their label, because clients can make up any number of their names.
func (r *Relay) labelOf(authority string) string {
	a, ok := r.now().router.Source(cache.Scope{Authority: authority})
	if !ok {
		return "" // the authority is no longer configured
	}
	return a.Name
}

// byAuthority returns the values of a counter, one for each authority that has servers.
func (r *Relay) byAuthority(of func(*counts) *atomic.Uint64) []admin.Sample {
	var samples []admin.Sample
	for name, o := range r.now().origins {
		if o.directory != nil {
			continue
		}
		samples = append(samples, admin.Sample{
			Value:  int64(of(o.counts).Load()),
			Labels: []attribute.KeyValue{authorityLabel(name)},
		})
	}
	return samples
}
