package relay

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/xds-relay/xds-relay/internal/telemetry"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// collector is an OpenTelemetry collector.
type collector struct {
	collectortrace.UnimplementedTraceServiceServer
	collectormetrics.UnimplementedMetricsServiceServer

	mu       sync.Mutex
	spans    []*tracev1.Span
	metrics  []string
	services []string // that have sent something
}

// listen starts the collector, and sets the environment to it.
func (c *collector) listen(t *testing.T) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	collectortrace.RegisterTraceServiceServer(s, c)
	collectormetrics.RegisterMetricsServiceServer(s, metricsOf{c})
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+lis.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	t.Setenv("OTEL_SERVICE_NAME", "edge-relay")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
}

// Export implements the service of traces.
func (c *collector) Export(_ context.Context, r *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		c.services = append(c.services, valueOf(of.GetResource().GetAttributes(), "service.name"))
		for _, scope := range of.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

// metricsOf is the service of metrics.
type metricsOf struct{ *collector }

// Export implements the service of metrics.
func (c metricsOf) Export(_ context.Context, r *collectormetrics.ExportMetricsServiceRequest) (*collectormetrics.ExportMetricsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range r.GetResourceMetrics() {
		c.services = append(c.services, valueOf(of.GetResource().GetAttributes(), "service.name"))
		for _, scope := range of.GetScopeMetrics() {
			for _, m := range scope.GetMetrics() {
				c.metrics = append(c.metrics, m.GetName())
			}
		}
	}
	return &collectormetrics.ExportMetricsServiceResponse{}, nil
}

// named returns the spans with a name.
func (c *collector) named(name string) (spans []*tracev1.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.GetName() == name {
			spans = append(spans, s)
		}
	}
	return spans
}

func valueOf(attributes []*commonv1.KeyValue, key string) string {
	for _, a := range attributes {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

func eventsOf(s *tracev1.Span) (names []string) {
	for _, e := range s.GetEvents() {
		names = append(names, e.GetName())
	}
	return names
}

// runTraced runs a relay with the telemetry of the environment. Its control plane makes some changes, and one client
// acknowledges each. It returns once everything is sent.
func runTraced(t *testing.T, changes int) {
	t.Helper()
	sends, err := telemetry.FromEnvironment(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	plane := newCountingPlane()
	plane.up()
	defer plane.down()
	s := startInMemoryWith(t, `
listeners: [{address: "127.0.0.1:18000"}]
authorities: [{name: plane, servers: [{address: "plane:18000", protocol: delta}]}]
old_style_names: [{authority: plane}]
`, Options{Log: slog.New(slog.DiscardHandler), Telemetry: sends}, func(string) dialer { return plane.dial })
	conn, _ := s.dial(t)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: clustersOfPlane}
	for n := range changes {
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		plane.changes <- n
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		req = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResponseNonce: resp.GetNonce()}
	}
	// The half-close is read after the last ACK.
	if err := stream.Send(req); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("a response after the half-close")
	}
	_ = conn.Close()
	s.close()
	sends.Close()
}

func TestACollectorGetsTheSpansOfResponsesAndTheMetrics(t *testing.T) {
	c := &collector{}
	c.listen(t)
	const changes = 2
	runTraced(t, changes)
	responses, sends := c.named("xds.response"), c.named("xds.propagate")
	if len(responses) != changes || len(sends) != changes {
		t.Fatalf("%d spans of responses and %d of what was sent of them, want %d of each", len(responses), len(sends), changes)
	}
	for i, s := range responses {
		for key, want := range map[string]string{
			"grpc.xds.authority": "plane", "grpc.xds.resource_type": "envoy.config.cluster.v3.Cluster", "grpc.xds.server": "plane:18000",
		} {
			if got := valueOf(s.GetAttributes(), key); got != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
		if got, want := eventsOf(s), []string{"parsed", "checked", "stored in the cache", "ACK"}; !slices.Equal(got, want) {
			t.Errorf("the events of a response are %q, want %q", got, want)
		}
		if s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() || len(s.GetParentSpanId()) > 0 {
			t.Errorf("response %d: %v", i, s)
		}
	}
	for _, s := range sends {
		if !slices.ContainsFunc(responses, func(r *tracev1.Span) bool {
			return string(r.GetSpanId()) == string(s.GetParentSpanId()) && string(r.GetTraceId()) == string(s.GetTraceId())
		}) {
			t.Error("what was sent is of no response")
		}
		want := []string{"acked: first client", "acked: last client", "acked: median client", "sent: first client", "sent: last client", "sent: median client"}
		if got := slices.Sorted(slices.Values(eventsOf(s))); !slices.Equal(got, want) {
			t.Errorf("the events of what was sent are %q, want %q", got, want)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range []string{"xds_relay.propagation.duration", "xds_relay.downstream.responses"} {
		if !slices.Contains(c.metrics, name) {
			t.Errorf("the collector lacks %s: %q", name, c.metrics)
		}
	}
	for _, service := range c.services {
		if service != "edge-relay" {
			t.Errorf("service.name is %q", service)
		}
	}
	for _, s := range c.spans {
		for _, name := range clustersOfPlane {
			if strings.Contains(s.String(), `"`+name+`"`) {
				t.Errorf("a span has the name of a resource: %s", s)
			}
		}
	}
}

func TestTheSamplerDecidesWhichResponsesHaveSpans(t *testing.T) {
	c := &collector{}
	c.listen(t)
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	runTraced(t, 2)
	if n := len(c.named("xds.response")) + len(c.named("xds.propagate")); n > 0 {
		t.Errorf("%d spans, want none", n)
	}
}
