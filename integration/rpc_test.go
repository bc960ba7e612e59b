package integration

import (
	"fmt"
	"slices"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// TestRPCsFlowThroughLDSAndRDSAndCDSAndEDS checks that RPCs of gRPC's client reach a backend through the
// resources that the relay serves, and follow a change of endpoints, whichever form the relay speaks to the
// control plane.
func TestRPCsFlowThroughLDSAndRDSAndCDSAndEDS(t *testing.T) {
	for _, upstream := range []struct {
		name     string
		protocol form
		speaks   []form
		want     form // the form that the relay speaks after negotiation
	}{
		{"delta", delta, []form{delta, sotw}, delta},
		{"SotW", sotw, []form{delta, sotw}, sotw},
		{"auto with a server that supports delta", auto, []form{delta, sotw}, delta},
		{"auto with a server that does not support delta", auto, []form{sotw}, sotw},
	} {
		t.Run(upstream.name, func(t *testing.T) {
			t.Parallel()
			snapshots := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
			cp := serveControlPlane(t, snapshots, upstream.speaks...)
			r := startRelay(t, relayTo(cp.address, string(upstream.protocol)))
			version := 0
			show := func(b *backend) {
				version++
				snapshot, err := cachev3.NewSnapshot(fmt.Sprint(version), map[resource.Type][]types.Resource{
					listenerType: {apiListener(t, "shop", "shop-routes")},
					routeType:    {routeConfiguration("shop-routes", routeTo("shop-cluster", prefix("")))},
					clusterType:  {edsCluster("shop-cluster", "shop-endpoints")},
					endpointType: {endpointsAt(t, "shop-endpoints", b.address)},
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := snapshots.SetSnapshot(t.Context(), "edge-1", snapshot); err != nil {
					t.Fatal(err)
				}
			}
			first, second := startBackend(t, "first"), startBackend(t, "second")
			show(first)
			channel := dialXDS(t, bootstrapFor(r, "edge-1"), "xds:///shop")
			channel.awaitReaches(someMethod, first)
			show(second)
			channel.awaitReaches(someMethod, second)

			cp.read(func(s *seen) {
				stream := s.only()
				switch {
				case stream == nil:
					t.Errorf("want 1 stream at the control plane; it has seen %s", s)
				case stream.form != upstream.want:
					t.Errorf("the relay speaks %s upstream, want %s", stream.form, upstream.want)
				case stream.node.GetId() != "edge-1":
					t.Errorf("the relay's Node has the id %q, want the client's, edge-1", stream.node.GetId())
				}
				if len(s.nacks) > 0 {
					t.Errorf("the control plane received NACKs: %q", s.nacks)
				}
			})
			cp.refused.read(func(n *int) {
				if fits := slices.Contains(upstream.speaks, delta); fits != (*n == 0) {
					t.Errorf("the relay opened %d streams in a form that the server does not support", *n)
				}
			})
		})
	}
}
