package integration

import (
	"context"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// TestHealthAndReflectionAreServed checks that load balancers find the health service, and grpcurl the
// reflection service.
func TestHealthAndReflectionAreServed(t *testing.T) {
	t.Parallel()
	cp := startControlPlane(t, delta)
	r := startRelay(t, relayTo(cp.address, "delta"))
	r.awaitLog(t, `msg=(ready)`) // it serves clients a moment earlier
	conn := connect(t, r.address)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	status, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || status.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health is %v (%v), want SERVING", status.GetStatus(), err)
	}

	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	const ads = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	var services []string
	for _, s := range ask(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}).GetListServicesResponse().GetService() {
		services = append(services, s.GetName())
	}
	for _, want := range []string{ads, "grpc.health.v1.Health"} {
		if !slices.Contains(services, want) {
			t.Errorf("reflection lists %q, want %s among them", services, want)
		}
	}
	described := ask(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: ads},
	})
	if len(described.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("reflection does not describe %s: %v", ads, described)
	}
}

// TestServicesOfOneTypeServeTheSame checks that the discovery service of a single type serves the same
// resources as ADS, without a type_url in requests.
func TestServicesOfOneTypeServeTheSame(t *testing.T) {
	t.Parallel()
	want := plainEndpoints("endpoints", 1)
	cp := startControlPlane(t, delta)
	cp.set(want)
	r := startRelay(t, relayTo(cp.address, "delta"))
	eds := endpointservice.NewEndpointDiscoveryServiceClient(connect(t, r.address))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	deltaStream, err := eds.DeltaEndpoints(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := deltaStream.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"endpoints"}}); err != nil {
		t.Fatal(err)
	}
	changes, err := deltaStream.Recv()
	if resources := changes.GetResources(); err != nil || len(resources) != 1 || string(resources[0].GetResource().GetValue()) != encode(want) {
		t.Errorf("delta: got %v (%v), want the endpoints", changes, err)
	}

	sotwStream, err := eds.StreamEndpoints(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := sotwStream.Send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{"endpoints"}}); err != nil {
		t.Fatal(err)
	}
	state, err := sotwStream.Recv()
	if resources := state.GetResources(); err != nil || len(resources) != 1 || string(resources[0].GetValue()) != encode(want) {
		t.Errorf("SotW: got %v (%v), want the endpoints", state, err)
	}
	if opened := look(cp.recorder, func(s *seen) int { return s.opened }); opened != 1 {
		t.Errorf("the control plane saw %d streams, want 1", opened)
	}
}
