package relay

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
)

// reloadInstruments returns the metrics of reloads.
func (r *Relay) reloadInstruments() []instrument {
	return []instrument{
		{r.metrics.Gauge, "xds_relay.config.info", "The running configuration, identified by its hash. The value is always 1.", func() []admin.Sample {
			return []admin.Sample{{Value: 1, Labels: []attribute.KeyValue{attribute.String("hash", r.Hash())}}}
		}},
		{r.metrics.Gauge, "xds_relay.config.last_reload_success_timestamp_seconds", "When the running configuration was loaded, as a Unix timestamp in seconds.", func() []admin.Sample {
			return []admin.Sample{{Value: r.configStatus().Loaded.Unix()}}
		}},
		{r.metrics.Gauge, "xds_relay.config.last_reload_successful", "0 if the last reload failed, otherwise 1.", func() []admin.Sample {
			if r.configStatus().Problem != "" {
				return []admin.Sample{{Value: 0}}
			}
			return []admin.Sample{{Value: 1}}
		}},
		{r.metrics.Counter, "xds_relay.config.reload_failures", "Failed reloads. The running configuration stays in use.", one(func() uint64 { return r.configStatus().Failures })},
	}
}
