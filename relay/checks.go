package relay

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/taster"
)

// Resources that clients would reject: what the relay does with them, and their metric.

// CheckMode returns what the relay does with resources that clients would reject, by an authority's `check`.
func CheckMode(check configs.Check) taster.Mode {
	switch check {
	case configs.CheckRefuse:
		return taster.Refuse
	case configs.CheckOff:
		return taster.Off
	}
	return taster.Warn
}

// rejectable returns the samples of the metric of resources that clients would reject.
func (r *Relay) rejectable() []admin.Sample {
	var samples []admin.Sample
	for name, of := range r.now().counts {
		for c, n := range of.tally.Counts() {
			outcome := "warned"
			if c.Refused {
				outcome = "refused"
			}
			samples = append(samples, admin.Sample{Value: int64(n), Labels: []attribute.KeyValue{
				authorityLabel(name), typeLabel(c.Type),
				attribute.String("rejected_by", c.By), attribute.String("outcome", outcome),
			}})
		}
	}
	return samples
}
