package telemetry

import (
	"log/slog"
	"strings"
	"testing"
)

func TestNothingIsStartedUnlessTheEnvironmentAsksForIt(t *testing.T) {
	for _, tt := range []struct {
		name            string
		env             map[string]string
		metrics, traces bool
		err             string
	}{
		{name: "nothing is set"},
		{name: "an endpoint", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, metrics: true, traces: true},
		{name: "an endpoint of one signal", env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, traces: true},
		{name: "one exporter", env: map[string]string{"OTEL_METRICS_EXPORTER": "otlp"}, metrics: true},
		{name: "no metrics", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_METRICS_EXPORTER": "none"}, traces: true},
		{name: "prometheus only, which is the admin listener", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_METRICS_EXPORTER": "prometheus", "OTEL_TRACES_EXPORTER": "none"}},
		{name: "both forms of metrics", env: map[string]string{"OTEL_METRICS_EXPORTER": "otlp, prometheus"}, metrics: true},
		{name: "disabled", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}},
		{name: "grpc", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, metrics: true, traces: true},
		{
			name: "another exporter", env: map[string]string{"OTEL_TRACES_EXPORTER": "jaeger"},
			err: `OTEL_TRACES_EXPORTER: "jaeger" is none of otlp, none`,
		},
		{
			name: "another protocol", env: map[string]string{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json"},
			err: `OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: "http/json" is none of grpc, http/protobuf`,
		},
		{
			name: "bad attributes", env: map[string]string{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_RESOURCE_ATTRIBUTES": "x"},
			err: "OTEL_RESOURCE_ATTRIBUTES: ",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			of, err := FromEnvironment(t.Context(), slog.New(slog.DiscardHandler))
			if err != nil || tt.err != "" {
				if tt.err == "" || err == nil || !strings.HasPrefix(err.Error(), tt.err) {
					t.Errorf("the error is %v, want %s", err, tt.err)
				}
				return
			}
			if got := len(of.Metrics) > 0; got != tt.metrics {
				t.Errorf("metrics are sent: %t, want %t", got, tt.metrics)
			}
			if got := of.Tracer != nil; got != tt.traces {
				t.Errorf("traces are sent: %t, want %t", got, tt.traces)
			}
			of.Close()
		})
	}
}
