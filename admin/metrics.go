package admin

import (
	"context"
	"fmt"
	"net/http"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
)

// Metrics are OpenTelemetry instruments that a scrape reads. The packages count with plain atomics, so
// an instrument costs nothing between scrapes.
type Metrics struct {
	registry *prometheus.Registry
	provider *sdk.MeterProvider
	meter    metric.Meter
}

// Sample is one value of an instrument, with its labels.
type Sample struct {
	Value  int64
	Labels []attribute.KeyValue
}

// heapLive is the live heap after the last garbage collection.
var heapLive = regexp.MustCompile(`^/gc/heap/live:bytes$`)

// NewMetrics returns instruments that include those of Go's runtime and of the process. Operators need
// them to size a container. The options add further exporters.
func NewMetrics(o ...sdk.Option) (*Metrics, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: heapLive})),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo(), otelprometheus.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	provider := sdk.NewMeterProvider(append(o, sdk.WithReader(exporter))...)
	return &Metrics{registry: registry, provider: provider, meter: provider.Meter("xds-relay")}, nil
}

// Counter adds an instrument that only grows. Each scrape calls read.
func (m *Metrics) Counter(name, about string, read func() []Sample) error {
	c, err := m.meter.Int64ObservableCounter(name, metric.WithDescription(about))
	if err != nil {
		return fmt.Errorf("metric %s: %w", name, err)
	}
	return m.register(c, read)
}

// Gauge adds an instrument that goes up and down. Each scrape calls read.
func (m *Metrics) Gauge(name, about string, read func() []Sample) error {
	g, err := m.meter.Int64ObservableGauge(name, metric.WithDescription(about))
	if err != nil {
		return fmt.Errorf("metric %s: %w", name, err)
	}
	return m.register(g, read)
}

// Histogram adds an instrument of times or sizes, with the bounds of its buckets.
func (m *Metrics) Histogram(name, about, unit string, bounds []float64) (metric.Float64Histogram, error) {
	h, err := m.meter.Float64Histogram(name, metric.WithDescription(about), metric.WithUnit(unit), metric.WithExplicitBucketBoundaries(bounds...))
	if err != nil {
		return nil, fmt.Errorf("metric %s: %w", name, err)
	}
	return h, nil
}

func (m *Metrics) register(i metric.Int64Observable, read func() []Sample) error {
	_, err := m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, s := range read() {
			o.ObserveInt64(i, s.Value, metric.WithAttributes(s.Labels...))
		}
		return nil
	}, i)
	return err
}

func (m *Metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Shutdown stops the instruments.
func (m *Metrics) Shutdown(ctx context.Context) error { return m.provider.Shutdown(ctx) }
