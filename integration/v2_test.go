package integration

// Clients of the v2 transport, with the messages and services of the v2 API.

import (
	"context"
	"net/http"
	"strings"
	"testing"

	apiv2 "github.com/envoyproxy/go-control-plane/envoy/api/v2"
	corev2 "github.com/envoyproxy/go-control-plane/envoy/api/v2/core"
	discoveryv2 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v2"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	clusterV2Type   = "type.googleapis.com/envoy.api.v2.Cluster"
	endpointsV2Type = "type.googleapis.com/envoy.api.v2.ClusterLoadAssignment"
)

// startControlPlaneOf starts a control plane for these types.
func startControlPlaneOf(t testing.TB, upstream form, typeURLs ...string) *controlPlane {
	t.Helper()
	linear := map[string]*cachev3.LinearCache{}
	mux := &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return place("", r.GetTypeUrl()) },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return place("", r.GetTypeUrl()) },
		Caches:        map[string]cachev3.Cache{},
	}
	for _, typeURL := range typeURLs {
		c := cachev3.NewLinearCache(typeURL)
		linear[place("", typeURL)], mux.Caches[place("", typeURL)] = c, c
	}
	cp := serveControlPlane(t, mux, upstream)
	cp.linear = linear
	return cp
}

// TestV2TransportServesBothVersionsOfTheAPI checks that clients of the v2 transport receive resources of
// either version of the API, over ADS and the discovery services of single types.
func TestV2TransportServesBothVersionsOfTheAPI(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			cp := startControlPlaneOf(t, upstream, clusterType, clusterV2Type, endpointsV2Type)
			old, oldEndpoints := &apiv2.Cluster{Name: "a", AltStatName: "old"}, &apiv2.ClusterLoadAssignment{ClusterName: "a"}
			cp.set(plainCluster("a", "new"), old, oldEndpoints)
			r := startRelay(t, pollable(cp.address, string(upstream)))
			conn := connect(t, r.address)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			node := &corev2.Node{Id: "v2", UserAgentName: "envoy"}

			ads, err := discoveryv2.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []proto.Message{plainCluster("a", "new"), old, oldEndpoints} {
				if err := ads.Send(&apiv2.DiscoveryRequest{Node: node, TypeUrl: typeOf(want), ResourceNames: []string{"a"}}); err != nil {
					t.Fatal(err)
				}
				got, err := ads.Recv()
				if resources := got.GetResources(); err != nil || got.GetTypeUrl() != typeOf(want) || len(resources) != 1 || string(resources[0].GetValue()) != encode(want) {
					t.Errorf("ADS: got %v (%v), want %v", got, err, want)
				}
			}

			cds := apiv2.NewClusterDiscoveryServiceClient(conn)
			deltaStream, err := cds.DeltaClusters(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := deltaStream.Send(&apiv2.DeltaDiscoveryRequest{Node: node}); err != nil { // a wildcard
				t.Fatal(err)
			}
			changes, err := deltaStream.Recv()
			if resources := changes.GetResources(); err != nil || len(resources) != 1 || string(resources[0].GetResource().GetValue()) != encode(old) {
				t.Errorf("delta: got %v (%v), want %v", changes, err, old)
			}
			sotwStream, err := cds.StreamClusters(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := sotwStream.Send(&apiv2.DiscoveryRequest{Node: node, TypeUrl: clusterType}); err != nil {
				t.Fatal(err)
			}
			state, err := sotwStream.Recv()
			if resources := state.GetResources(); err != nil || state.GetTypeUrl() != clusterType || len(resources) != 1 || string(resources[0].GetValue()) != encode(plainCluster("a", "new")) {
				t.Errorf("SotW: got %v (%v), want the new cluster", state, err)
			}
			fetched, err := cds.FetchClusters(ctx, &apiv2.DiscoveryRequest{Node: node, ResourceNames: []string{"a"}})
			if resources := fetched.GetResources(); err != nil || len(resources) != 1 || string(resources[0].GetValue()) != encode(old) {
				t.Errorf("fetch: got %v (%v), want %v", fetched, err, old)
			}

			p := newPoller(t, r, "v2-poller")
			p.must("/v2/discovery:clusters", "", 0).check(t, "REST", old)
			p.must("/v2/discovery:endpoints", "", 0, "a").check(t, "REST by name", oldEndpoints)
		})
	}
}

// TestV2TransportIsOffByDefault checks that the relay does not serve the v2 transport unless the
// configuration enables it.
func TestV2TransportIsOffByDefault(t *testing.T) {
	t.Parallel()
	cp := startControlPlane(t, delta)
	r := startRelay(t, strings.ReplaceAll(pollable(cp.address, "delta"), "    v2: true\n", ""))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := apiv2.NewClusterDiscoveryServiceClient(connect(t, r.address)).FetchClusters(ctx, &apiv2.DiscoveryRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("v2 over gRPC returned %v, want UNIMPLEMENTED", err)
	}
	if answer := newPoller(t, r, "v2").must("/v2/discovery:clusters", "", 0); answer.status != http.StatusNotFound || !strings.Contains(answer.body, "v2 transport") {
		t.Errorf("v2 over REST returned %d: %s", answer.status, answer.body)
	}
}
