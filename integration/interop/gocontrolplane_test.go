package interop

// go-control-plane, with its two caches.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
)

// world has all resources of a control plane, by type and name.
type world map[resource.Type]map[string]types.Resource

// goControlPlane is go-control-plane with one of its caches.
type goControlPlane struct {
	t      testing.TB
	server serverv3.Server
	now    world
	// turn replaces the resources in the cache.
	turn func(to world)
}

func startGoControlPlane(t testing.TB, cache cachev3.Cache, turn func(from, to world)) controlPlane {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	g := &goControlPlane{t: t, server: serverv3.NewServer(ctx, cache, nil), now: world{}}
	g.turn = func(to world) {
		turn(g.now, to)
		g.now = to
	}
	return g
}

func (g *goControlPlane) register(s *grpc.Server) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, g.server)
}

func (g *goControlPlane) target() string { return "xds:///shop" }

func (g *goControlPlane) show(cluster string, at *backend) {
	g.turn(world{
		resource.ListenerType: {"shop": apiListener(g.t, "shop", "routes")},
		resource.RouteType:    {"routes": routesTo("routes", cluster)},
		resource.ClusterType:  {cluster: edsCluster(cluster)},
		resource.EndpointType: {cluster: endpointsAt(cluster, at)},
	})
}

func (g *goControlPlane) rule(limits map[string]uint32) {
	rules := map[string]types.Resource{}
	for domain, limit := range limits {
		rules[domain] = rateLimit(domain, limit)
	}
	g.turn(world{resource.RateLimitConfigType: rules})
}

// startLinear starts go-control-plane with linear caches, one for each type,
// whose resources change one by one.
func startLinear(t testing.TB) controlPlane {
	t.Helper()
	// The order in which clients can follow changes: a resource comes before those that name it.
	order := []resource.Type{
		resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType, resource.RateLimitConfigType,
	}
	linear := map[resource.Type]*cachev3.LinearCache{}
	mux := &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        map[string]cachev3.Cache{},
	}
	for _, typeURL := range order {
		linear[typeURL] = cachev3.NewLinearCache(typeURL)
		mux.Caches[typeURL] = linear[typeURL]
	}
	return startGoControlPlane(t, mux, func(from, to world) {
		for _, typeURL := range order {
			if err := linear[typeURL].UpdateResources(to[typeURL], nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, typeURL := range order {
			gone := maps.Clone(from[typeURL])
			for name := range to[typeURL] {
				delete(gone, name)
			}
			if err := linear[typeURL].UpdateResources(nil, slices.Collect(maps.Keys(gone))); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// startSnapshots starts go-control-plane with a snapshot cache, in which all resources of a node change at
// the same time. With ads=false, the cache answers each request on its own, even if it does not have all
// requested resources.
func startSnapshots(t testing.TB) controlPlane {
	t.Helper()
	snapshots := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	version := 0
	return startGoControlPlane(t, snapshots, func(_, to world) {
		version++
		resources := map[resource.Type][]types.Resource{}
		for typeURL, named := range to {
			resources[typeURL] = slices.Collect(maps.Values(named))
		}
		snapshot, err := cachev3.NewSnapshot(fmt.Sprint(version), resources)
		if err != nil {
			t.Fatal(err)
		}
		if err := snapshots.SetSnapshot(t.Context(), nodeID, snapshot); err != nil {
			t.Fatal(err)
		}
	})
}
