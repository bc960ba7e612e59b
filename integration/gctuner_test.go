package integration

import (
	"fmt"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// TestRuntimeIsTunedWhileALargeResponseIsProcessed checks that the relay gives its heap headroom when a control
// plane sends a large response.
func TestRuntimeIsTunedWhileALargeResponseIsProcessed(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("x", 1<<20)
	var clusters []types.Resource
	for i := range 24 {
		clusters = append(clusters, plainCluster(fmt.Sprint(i), content))
	}
	snapshot, err := cachev3.NewSnapshot("1", map[string][]types.Resource{clusterType: clusters})
	if err != nil {
		t.Fatal(err)
	}
	snapshots := cachev3.NewSnapshotCache(true, everybody{}, nil)
	if err := snapshots.SetSnapshot(t.Context(), "", snapshot); err != nil {
		t.Fatal(err)
	}
	r := startRelay(t, relayTo(serveControlPlane(t, snapshots, delta).address, "auto"))
	gogc := func() string {
		_, value, _ := strings.Cut(fetch(t, "http://"+r.admin+"/metrics"), "\ngo_gc_gogc_percent ")
		value, _, _ = strings.Cut(value, "\n")
		return value
	}
	before := gogc()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connect(t, r.address)).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node("large", ""), TypeUrl: clusterType}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the relay raises GOGC", func() error {
		if now := gogc(); now == before {
			return fmt.Errorf("GOGC is %s, as before", now)
		}
		return nil
	})
}
