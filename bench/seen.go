package main

import (
	"context"
	"net"

	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// x: the cost of observing the relay. Without an admin listener and a collector, the relay measures
// nothing. With both, it measures the propagation of each change, and traces each response.

const (
	// systemUnseen is the relay without an admin listener, and without telemetry.
	systemUnseen = "xds-relay that nobody sees"
	// systemTraced is the relay that also sends metrics, and a trace of each response, to a collector.
	systemTraced = "xds-relay with metrics and traces"
)

func seen() (all []scenario) {
	for _, form := range []struct {
		id, name string
		delta    bool
	}{{"x1", "delta", true}, {"x2", "SotW", false}} {
		all = append(all, of(form.id, "one of 100 shared resources of 1 KB changes, 5,000 clients, "+form.name, []string{systemFloor, systemUnseen, systemRelay, systemTraced}, func(b *bench, system string) []metric {
			clients, n := b.scale(5000, 200), b.scale(20, 5)
			spec := &Spec{Delta: form.delta, Resources: 100, Size: 1 << 10, PerClient: 100}
			switch system {
			case systemUnseen:
				system, spec.Unseen = systemRelay, true
			case systemTraced:
				lis := must(net.Listen("tcp", "127.0.0.1:0"))
				defer startCollector(lis).Stop()
				system, spec.Env = systemRelay, []string{
					"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + lis.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
					"OTEL_TRACES_SAMPLER=always_on", "OTEL_METRIC_EXPORT_INTERVAL=1000",
				}
			}
			s := b.beginWarm(system, spec, command{Clients: clients, PerConn: 1})
			cpu, _, last := s.updates(n)
			return []metric{
				{"CPU per message", "µs", micros(cpu, n*clients)},
				{"last client", "ms", millis(middle(last))},
				{"memory per client", "KiB", s.perClient(s.rest)},
			}
		}))
	}
	return all
}

// collector is an OpenTelemetry collector that discards all data.
type collector struct {
	collectortrace.UnimplementedTraceServiceServer
}

// Export implements the service of traces.
func (collector) Export(context.Context, *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

// metricsCollector is the same for metrics.
type metricsCollector struct {
	collectormetrics.UnimplementedMetricsServiceServer
}

// Export implements the service of metrics.
func (metricsCollector) Export(context.Context, *collectormetrics.ExportMetricsServiceRequest) (*collectormetrics.ExportMetricsServiceResponse, error) {
	return &collectormetrics.ExportMetricsServiceResponse{}, nil
}

// startCollector starts a collector.
func startCollector(lis net.Listener) *grpc.Server {
	s := grpc.NewServer()
	collectortrace.RegisterTraceServiceServer(s, collector{})
	collectormetrics.RegisterMetricsServiceServer(s, metricsCollector{})
	go func() { _ = s.Serve(lis) }()
	return s
}
