// Package telemetry sends metrics and traces to an OpenTelemetry collector. The OTEL_* environment variables of the
// OpenTelemetry specification configure it. It starts nothing that they do not enable.
package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Telemetry has the exporters of metrics and traces.
type Telemetry struct {
	// Metrics are the options of the meter provider; none if metrics are not sent.
	Metrics []sdkmetric.Option
	// Tracer is nil if traces are not sent.
	Tracer trace.Tracer

	traces *sdktrace.TracerProvider
}

// FromEnvironment returns the telemetry that the environment configures. Errors name the variable.
func FromEnvironment(ctx context.Context, log *slog.Logger) (*Telemetry, error) {
	t := &Telemetry{}
	if disabled, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED")); disabled {
		return t, nil
	}
	metrics, err := exported("METRICS", "prometheus")
	if err != nil {
		return nil, err
	}
	traces, err := exported("TRACES")
	if err != nil || !metrics && !traces {
		return t, err
	}
	attributes, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "xds-relay"), attribute.String("service.version", version())),
		resource.WithFromEnv()) // the last one takes precedence
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	logErrors(log)
	if metrics {
		e, err := newExporter("METRICS", map[string]func() (sdkmetric.Exporter, error){
			"grpc":          func() (sdkmetric.Exporter, error) { return otlpmetricgrpc.New(ctx) },
			"http/protobuf": func() (sdkmetric.Exporter, error) { return otlpmetrichttp.New(ctx) },
		})
		if err != nil {
			return nil, err
		}
		t.Metrics = []sdkmetric.Option{sdkmetric.WithReader(sdkmetric.NewPeriodicReader(e)), sdkmetric.WithResource(attributes)}
	}
	if traces {
		e, err := newExporter("TRACES", map[string]func() (sdktrace.SpanExporter, error){
			"grpc":          func() (sdktrace.SpanExporter, error) { return otlptracegrpc.New(ctx) },
			"http/protobuf": func() (sdktrace.SpanExporter, error) { return otlptracehttp.New(ctx) },
		})
		if err != nil {
			return nil, err
		}
		t.traces = sdktrace.NewTracerProvider(sdktrace.WithBatcher(e), sdktrace.WithResource(attributes)) // which reads OTEL_TRACES_SAMPLER
		t.Tracer = t.traces.Tracer("xds-relay")
	}
	log.Info("telemetry is sent to an OpenTelemetry collector", "metrics", metrics, "traces", traces)
	return t, nil
}

// closing bounds the duration of Close.
const closing = 2 * time.Second

// Close sends the remaining traces, for a bounded time.
func (t *Telemetry) Close() {
	if t.traces == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	if err := t.traces.Shutdown(ctx); err != nil {
		otel.Handle(err)
	}
}

// version returns the version of the binary.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return ""
}

// exported reports whether a signal (METRICS or TRACES) is to be sent: as OTEL_*_EXPORTER says, or if that is not
// set, whether an endpoint is configured. others are exporters that other packages implement.
func exported(signal string, others ...string) (bool, error) {
	name := "OTEL_" + signal + "_EXPORTER"
	exporters := os.Getenv(name)
	if exporters == "" {
		return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != "", nil
	}
	sent := false
	for exporter := range strings.SplitSeq(exporters, ",") {
		switch exporter = strings.TrimSpace(exporter); {
		case exporter == "otlp":
			sent = true
		case exporter == "none", slices.Contains(others, exporter):
		default:
			return false, fmt.Errorf("%s: %q is none of %s", name, exporter, strings.Join(append([]string{"otlp", "none"}, others...), ", "))
		}
	}
	return sent, nil
}

// newExporter returns the exporter of a signal by its protocol.
func newExporter[E any](signal string, exporters map[string]func() (E, error)) (e E, err error) {
	name := "OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL"
	protocol := os.Getenv(name)
	if protocol == "" {
		name = "OTEL_EXPORTER_OTLP_PROTOCOL"
		protocol = os.Getenv(name)
	}
	if protocol == "" {
		protocol = "http/protobuf" // as the specification recommends
	}
	open := exporters[protocol]
	if open == nil {
		return e, fmt.Errorf("%s: %q is none of grpc, http/protobuf", name, protocol)
	}
	if e, err = open(); err != nil {
		return e, fmt.Errorf("the exporter of OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}
	return e, nil
}

// lines bounds the log lines about a collector that cannot be reached.
var lines loglines.Shared

// logErrors logs the errors of the exporters, which no one else handles.
func logErrors(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		if log, ok := lines.Next(log); ok {
			log.Warn("telemetry cannot be sent", "reason", loglines.Clip(err.Error()))
		}
	}))
}
