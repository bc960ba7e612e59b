package relay

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/operator"
)

// buildInstruments returns the metric of the program.
func (r *Relay) buildInstruments() []instrument {
	b := operator.Build()
	labels := []attribute.KeyValue{
		attribute.String("version", b.Version), attribute.String("revision", b.Revision), attribute.String("go_version", b.Go), attribute.String("host", b.Host),
	}
	return []instrument{{r.metrics.Gauge, "xds_relay.build.info", "The program that runs, and its host. The value is always 1.", func() []admin.Sample {
		return []admin.Sample{{Value: 1, Labels: labels}}
	}}}
}
