package integration

// Control planes: go-control-plane's server.

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	deltaserver "github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	sotwserver "github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// controlPlane is a control plane that can be stopped and started again. It keeps its resources, its port,
// and its record of what it has seen.
type controlPlane struct {
	*port
	*recorder
	t       testing.TB
	cache   cachev3.Cache
	speaks  []form
	refused watched[int] // streams of a form that the control plane does not speak
	linear  map[string]*cachev3.LinearCache
	options []grpc.ServerOption // take effect at the next start
	loads   *loadServer         // takes effect at the next start; nil: no load reporting service
	end     func()
}

// startControlPlane starts a control plane whose resources are changed one by one, with set and remove. It
// answers UNIMPLEMENTED to a form that is not in speaks.
func startControlPlane(t testing.TB, speaks ...form) *controlPlane {
	t.Helper()
	return startPartitions(t, func(*corev3.Node) string { return "" }, []string{""}, speaks...)
}

// startPartitions starts a control plane that has its own resources for the Nodes of each partition.
func startPartitions(t testing.TB, partition func(*corev3.Node) string, partitions []string, speaks ...form) *controlPlane {
	t.Helper()
	linear := map[string]*cachev3.LinearCache{}
	mux := &cachev3.MuxCache{
		Classify: func(r *cachev3.Request) string { return place(partition(r.GetNode()), r.GetTypeUrl()) },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string {
			return place(partition(r.GetNode()), r.GetTypeUrl())
		},
		Caches: map[string]cachev3.Cache{},
	}
	for _, p := range partitions {
		for _, typeURL := range []string{listenerType, routeType, clusterType, endpointType} {
			c := cachev3.NewLinearCache(typeURL)
			linear[place(p, typeURL)], mux.Caches[place(p, typeURL)] = c, c
		}
	}
	cp := serveControlPlane(t, mux, speaks...)
	cp.linear = linear
	return cp
}

func place(partition, typeURL string) string { return partition + " " + typeURL }

// serveControlPlane starts a control plane that serves from a cache of go-control-plane.
func serveControlPlane(t testing.TB, cache cachev3.Cache, speaks ...form) *controlPlane {
	t.Helper()
	cp := &controlPlane{port: openPort(t), recorder: newRecorder(), t: t, cache: cache, speaks: speaks}
	cp.start()
	t.Cleanup(func() { cp.stop() })
	return cp
}

// start starts the control plane. It may be called again after stop.
func (cp *controlPlane) start() {
	ctx, cancel := context.WithCancel(context.Background())
	s := grpc.NewServer(append(cp.options, grpc.WaitForHandlers(true))...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, &service{
		plane: cp,
		sotw:  sotwserver.NewServer(ctx, cp.cache, eyes{cp.recorder}),
		delta: deltaserver.NewServer(ctx, cp.cache, eyes{cp.recorder}),
	})
	if cp.loads != nil {
		lrsv3.RegisterLoadReportingServiceServer(s, cp.loads)
	}
	cp.end = func() {
		cancel()
		s.Stop()
	}
	serve(s, cp.listen())
}

// stop breaks all streams. Clients cannot open new ones until start.
func (cp *controlPlane) stop() { cp.end() }

// service is the control plane's service, in the forms that it speaks.
type service struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	plane *controlPlane
	sotw  sotwserver.Server
	delta deltaserver.Server
}

// StreamAggregatedResources implements the service in SotW.
func (s *service) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if !slices.Contains(s.plane.speaks, sotw) {
		s.plane.refused.update(func(n *int) { *n++ })
		return s.UnimplementedAggregatedDiscoveryServiceServer.StreamAggregatedResources(stream)
	}
	return s.sotw.StreamHandler(stream, resource.AnyType)
}

// DeltaAggregatedResources implements the service in delta.
func (s *service) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if !slices.Contains(s.plane.speaks, delta) {
		s.plane.refused.update(func(n *int) { *n++ })
		return s.UnimplementedAggregatedDiscoveryServiceServer.DeltaAggregatedResources(stream)
	}
	return s.delta.DeltaStreamHandler(stream, resource.AnyType)
}

// set adds or changes resources. Those of one type change at the same time.
func (cp *controlPlane) set(resources ...proto.Message) { cp.setIn("", resources...) }

// setIn is set for the resources of one partition.
func (cp *controlPlane) setIn(partition string, resources ...proto.Message) {
	cp.t.Helper()
	byType := map[string]map[string]types.Resource{}
	for _, r := range resources {
		typeURL := typeOf(r)
		if byType[typeURL] == nil {
			byType[typeURL] = map[string]types.Resource{}
		}
		byType[typeURL][nameOf(r)] = r
	}
	for _, typeURL := range slices.SortedFunc(maps.Keys(byType), strings.Compare) {
		if err := cp.linear[place(partition, typeURL)].UpdateResources(byType[typeURL], nil); err != nil {
			cp.t.Fatal(err)
		}
	}
}

// remove removes resources of one type at the same time.
func (cp *controlPlane) remove(typeURL string, names ...string) {
	cp.t.Helper()
	if err := cp.linear[place("", typeURL)].UpdateResources(nil, names); err != nil {
		cp.t.Fatal(err)
	}
}
