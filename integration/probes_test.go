package integration

import (
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// TestAListenerForProbesAnswersHealthAndServesNobody checks the listener that the Helm chart configures for
// the kubelet's probes. It answers health checks, and admits no client.
func TestAListenerForProbesAnswersHealthAndServesNobody(t *testing.T) {
	cp := startControlPlane(t, delta)
	r := startRelay(t, strings.Replace(relayTo(cp.address, string(delta)), "- address: 127.0.0.1:0", "- address: 127.0.0.1:0\n    admit: \"false\"", 1))
	conn := connect(t, r.address)
	eventually(t, "the relay is healthy", func() error {
		answer, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err == nil && answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			err = status.Error(codes.Unavailable, answer.GetStatus().String())
		}
		return err
	})
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// If the relay has ended the stream already, Send returns io.EOF, and Recv returns why.
	_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node("n", ""), TypeUrl: clusterType, ResourceNamesSubscribe: []string{wildcard}})
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a client received %v, want PERMISSION_DENIED", err)
	}
}
