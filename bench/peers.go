package main

import (
	"context"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
)

// Peers: the caches of go-control-plane behind its own server, with the same gRPC options as
// all other systems.

// constantHash gives all clients the same snapshot.
type constantHash struct{}

// ID implements cache.NodeHash.
func (constantHash) ID(*corev3.Node) string { return "all" }

func runLinear(spec *Spec) error {
	initial := map[string]types.Resource{}
	for i := range spec.Resources {
		initial[spec.name(i)] = spec.resource(i, 1)
	}
	linear := cache.NewLinearCache(spec.typeURL(), cache.WithInitialResources(initial))
	return runPeer(linear, func(index, v int) error {
		if index >= 0 {
			return linear.UpdateResource(spec.name(index), spec.resource(index, v))
		}
		all := map[string]types.Resource{}
		for i := range spec.Resources {
			all[spec.name(i)] = spec.resource(i, v)
		}
		return linear.UpdateResources(all, nil)
	})
}

func runSnapshot(spec *Spec) error {
	snapshots := cache.NewSnapshotCache(true, constantHash{}, nil)
	all := make([]types.Resource, spec.Resources)
	for i := range all {
		all[i] = spec.resource(i, 1)
	}
	set := func(v int) error {
		of := map[resource.Type][]types.Resource{spec.typeURL(): all}
		snapshot, err := cache.NewSnapshot(version(v), of)
		if err != nil {
			return err
		}
		return snapshots.SetSnapshot(context.Background(), "all", snapshot)
	}
	if err := set(1); err != nil {
		return err
	}
	return runPeer(snapshots, func(index, v int) error {
		for i := range all {
			if index < 0 || i == index {
				all[i] = spec.resource(i, v)
			}
		}
		return set(v)
	})
}

func runPeer(c cache.Cache, set func(index, v int) error) error {
	s := grpc.NewServer(quietOptions()...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, server.NewServer(context.Background(), c, nil))
	return serveSource(s, func(index, v int) (answer, error) {
		at := time.Now()
		return answer{At: at.UnixNano()}, set(index, v)
	}, func() {}, func() answer { return answer{} })
}
