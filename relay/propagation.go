package relay

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelmetric "go.opentelemetry.io/otel/metric"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/telemetry"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Metrics of how long changes take to reach clients.

// propagationBuckets are the bounds of the histogram's buckets, in seconds. They range from changes within one
// machine to rollouts that take hours. A quantile is exact to about a quarter of a bucket.
var propagationBuckets = []float64{
	0.0005, 0.0007, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7,
	1, 1.5, 2, 3, 5, 7, 10, 20, 30, 60, 300, 900, 3600, 14400,
}

// propagationMetrics implements propagation.Observer.
type propagationMetrics struct {
	durations otelmetric.Float64Histogram

	mu     sync.Mutex
	labels map[measured]otelmetric.MeasurementOption
	missed map[measured]*int64
}

// measured identifies a series. For missed, client is propagation.Last.
type measured struct {
	propagation.Kind
	stage  propagation.Stage
	client propagation.Client
}

func newPropagationMetrics(m *admin.Metrics) (*propagationMetrics, error) {
	h, err := m.Histogram("xds_relay.propagation.duration", "Time from the receipt of a change until the relay has sent it to clients (stage sent) or has received their ACKs (stage acked), in seconds.", "s", propagationBuckets)
	if err != nil {
		return nil, err
	}
	return &propagationMetrics{durations: h, labels: map[measured]otelmetric.MeasurementOption{}, missed: map[measured]*int64{}}, nil
}

// labelsOf returns the labels that all metrics of propagation have.
func (of measured) labelsOf() []attribute.KeyValue {
	return []attribute.KeyValue{
		authorityLabel(of.Authority), typeLabel(of.Type),
		attribute.String("stage", of.stage.String()), attribute.Bool("rollout", of.RolledOut),
	}
}

// Measures implements propagation.Observer. A counter that begins with 0 shows its first increase.
func (p *propagationMetrics) Measures(of propagation.Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.missedOf(of, propagation.Sent)
	p.missedOf(of, propagation.ACKed)
}

// Reached implements propagation.Observer.
func (p *propagationMetrics) Reached(of propagation.Kind, at propagation.Stage, client propagation.Client, after time.Duration) {
	key := measured{of, at, client}
	p.mu.Lock()
	labels := p.labels[key]
	if labels == nil {
		labels = otelmetric.WithAttributeSet(attribute.NewSet(append(key.labelsOf(), attribute.String("client", client.String()))...))
		p.labels[key] = labels
	}
	p.mu.Unlock()
	p.durations.Record(context.Background(), after.Seconds(), labels)
}

// Missed implements propagation.Observer.
func (p *propagationMetrics) Missed(of propagation.Kind, at propagation.Stage, clients int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*p.missedOf(of, at) += clients
}

// missedOf returns a counter. The caller holds mu.
func (p *propagationMetrics) missedOf(of propagation.Kind, at propagation.Stage) *int64 {
	key := measured{of, at, propagation.Last}
	n := p.missed[key]
	if n == nil {
		n = new(int64)
		p.missed[key] = n
	}
	return n
}

func (p *propagationMetrics) notReached() (samples []admin.Sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, n := range p.missed {
		samples = append(samples, admin.Sample{Value: *n, Labels: key.labelsOf()})
	}
	return samples
}

// beginMetrics makes the metrics, and begins to measure changes.
func (r *Relay) beginMetrics(t *telemetry.Telemetry) (err error) {
	r.exports = len(t.Metrics) > 0
	if r.metrics, err = admin.NewMetrics(t.Metrics...); err != nil {
		return err
	}
	if r.propagation, err = newPropagationMetrics(r.metrics); err != nil {
		return err
	}
	r.changes = propagation.NewTracker(r.propagation, func(authority, typeURL string) (string, string) {
		return r.labelOf(authority), xdstype.Label(typeURL)
	})
	r.changes.Measure(r.measures())
	return nil
}

// measures reports whether changes are measured: only if someone can see the results.
func (r *Relay) measures() bool { return r.exports || r.theOperator() != nil }
