package integration

import (
	"context"
	"maps"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// TestWhatWasDeletedWhileTheRelayWasDownIsSaid checks that a client that resumes by name learns which
// resources were removed, from a restarted relay without resources. In delta, the control plane sends
// removals only of names in initial_resource_versions.
func TestWhatWasDeletedWhileTheRelayWasDownIsSaid(t *testing.T) {
	kept := plainCluster("kept", "1")
	snapshot, err := cachev3.NewSnapshot("1", map[string][]types.Resource{clusterType: {kept}})
	if err != nil {
		t.Fatal(err)
	}
	snapshots := cachev3.NewSnapshotCache(true, everybody{}, nil)
	if err := snapshots.SetSnapshot(t.Context(), "", snapshot); err != nil {
		t.Fatal(err)
	}
	cp := serveControlPlane(t, snapshots, delta)
	names := []string{"deleted", "kept"}

	t.Run("sotw", func(t *testing.T) {
		t.Parallel()
		r := startRelay(t, relayTo(cp.address, "auto"))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connect(t, r.address)).StreamAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DiscoveryRequest{
			Node: node("resumes", ""), TypeUrl: clusterType, ResourceNames: names, VersionInfo: "0",
		}); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if n := len(resp.GetResources()); n != 1 || innerName(resp.GetResources()[0].GetValue()) != "kept" {
			t.Errorf("the response has %d resources, want the one that exists: %v", n, resp)
		}
	})

	t.Run("delta", func(t *testing.T) {
		t.Parallel()
		r := startRelay(t, relayTo(cp.address, "auto"))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connect(t, r.address)).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
			Node: node("resumes", ""), TypeUrl: clusterType, ResourceNamesSubscribe: names,
			InitialResourceVersions: map[string]string{"deleted": "0", "kept": "0"},
		}); err != nil {
			t.Fatal(err)
		}
		said := map[string]string{}
		for len(said) < len(names) {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatalf("for the names %v, the client received only %v: %v", names, said, err)
			}
			for _, res := range resp.GetResources() {
				said[res.GetName()] = "is there"
			}
			for _, name := range resp.GetRemovedResources() {
				said[name] = "is gone"
			}
		}
		if want := map[string]string{"kept": "is there", "deleted": "is gone"}; !maps.Equal(said, want) {
			t.Errorf("the client received %v, want %v", said, want)
		}
	})
}
