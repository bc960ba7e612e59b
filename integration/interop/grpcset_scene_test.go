package interop

// The resources of the shops that gRPC clients visit.

import (
	"maps"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	listenerType = resource.ListenerType
	routeType    = resource.RouteType
	clusterType  = resource.ClusterType
	endpointType = resource.EndpointType
)

// scene has the resources of a control plane. A test changes them, and pushes all changes at once.
type scene struct {
	t    testing.TB
	now  world
	turn func(to world)
}

func newScene(t testing.TB, p controlPlane) *scene {
	t.Helper()
	s := &scene{t: t, now: world{}}
	switch p := p.(type) {
	case *goControlPlane:
		s.turn = p.turn
	case *javaControlPlane:
		s.turn = p.turn
	default:
		t.Fatalf("a %T has no scene", p)
	}
	return s
}

// push makes the control plane have the resources of the scene.
func (s *scene) push() {
	to := world{}
	for typeURL, named := range s.now {
		to[typeURL] = maps.Clone(named)
	}
	s.turn(to)
}

func (s *scene) put(typeURL, name string, r types.Resource) {
	if s.now[typeURL] == nil {
		s.now[typeURL] = map[string]types.Resource{}
	}
	s.now[typeURL][name] = r
}

func (s *scene) drop(typeURL, name string) { delete(s.now[typeURL], name) }

// stock adds a shop: a listener, a route configuration, a cluster and endpoints of the same name.
func (s *scene) stock(shop string, at ...*backend) {
	s.put(listenerType, shop, apiListener(s.t, shop, shop))
	s.put(routeType, shop, routesTo(shop, shop))
	s.put(clusterType, shop, edsCluster(shop))
	s.place(shop, at...)
}

// clear removes a shop.
func (s *scene) clear(shop string) {
	for _, typeURL := range []string{listenerType, routeType, clusterType, endpointType} {
		s.drop(typeURL, shop)
	}
}

// place sets the endpoints of a cluster.
func (s *scene) place(cluster string, at ...*backend) {
	all := &endpointv3.ClusterLoadAssignment{ClusterName: cluster}
	for i, b := range at {
		one := endpointsAt(cluster, b)
		if i == 0 {
			all = one
			continue
		}
		all.Endpoints[0].LbEndpoints = append(all.Endpoints[0].LbEndpoints, one.Endpoints[0].LbEndpoints...)
	}
	s.put(endpointType, cluster, all)
}

// stockAggregate adds a shop with an aggregate cluster, and the clusters in it.
func (s *scene) stockAggregate(shop string, clusters ...string) {
	s.stock(shop)
	s.drop(endpointType, shop)
	s.put(clusterType, shop, &clusterv3.Cluster{
		Name: shop,
		ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name:        "envoy.clusters.aggregate",
			TypedConfig: toAny(s.t, &aggregatev3.ClusterConfig{Clusters: clusters}),
		}},
		LbPolicy: clusterv3.Cluster_ROUND_ROBIN, // gRPC rejects CLUSTER_PROVIDED
	})
	for _, c := range clusters {
		s.put(clusterType, c, edsCluster(c))
	}
}

// stockRing adds a shop whose cluster hashes the header "key".
func (s *scene) stockRing(shop string, at ...*backend) {
	s.stock(shop, at...)
	c := edsCluster(shop)
	c.LbPolicy = clusterv3.Cluster_RING_HASH
	c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
		MinimumRingSize: wrapperspb.UInt64(512),
	}}
	s.put(clusterType, shop, c)
	routes := routesTo(shop, shop)
	routes.VirtualHosts[0].Routes[0].GetRoute().HashPolicy = []*routev3.RouteAction_HashPolicy{{
		PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: "key"}},
	}}
	s.put(routeType, shop, routes)
}
