package relay

import (
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Resources that clients would reject, as the operator sees them.

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

// CheckStatus counts the resources of an authority that clients would reject, as /authorities shows it.
type CheckStatus struct {
	Mode string `json:"mode"`
	// Refused and Warned count resources. Each content that the authority sent counts once.
	Refused uint64 `json:"refused"`
	Warned  uint64 `json:"warned"`
	// Last are the last resources that clients would reject, the newest first.
	Last []FailureStatus `json:"last,omitempty"`
}

// FailureStatus is a resource that clients would reject.
type FailureStatus struct {
	Type      string    `json:"type"`
	Name      string    `json:"name"`
	Partition string    `json:"partition,omitempty"`
	Refused   bool      `json:"refused"`
	Reason    string    `json:"reason"`
	At        time.Time `json:"at"`
}

func viewOfCheck(a *configs.Authority, tally *taster.Tally) CheckStatus {
	v := CheckStatus{Mode: string(a.Check)}
	v.Refused, v.Warned = tally.Totals()
	for _, f := range tally.Failures() {
		v.Last = append(v.Last, FailureStatus{xdstype.Word(f.TypeURL), f.Name, f.Partition, f.Refused, f.Reason, f.At})
	}
	return v
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
