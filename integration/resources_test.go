package integration

// The resources that the tests use. Those for gRPC's client are complete enough to be valid for it.

import (
	"net"
	"strconv"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	routeType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

// ads returns the config source for a resource on the same ADS stream.
func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

// apiListener returns a listener for gRPC clients, which names its route configuration.
func apiListener(t testing.TB, name, routes string) *listenerv3.Listener {
	t.Helper()
	manager := &hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: routes, ConfigSource: ads()}},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: toAny(t, &routerv3.Router{})},
		}},
	}
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: toAny(t, manager)}}
}

// plainListener returns a listener with nothing but a name and a content.
func plainListener(name, content string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, StatPrefix: content}
}

// routeConfiguration returns one virtual host for all domains, with these routes.
func routeConfiguration(name string, routes ...*routev3.Route) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:         name,
		VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: routes}},
	}
}

// routeTo returns a route that sends matching RPCs to a cluster.
func routeTo(cluster string, match *routev3.RouteMatch) *routev3.Route {
	return &routev3.Route{Match: match, Action: &routev3.Route_Route{Route: &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
	}}}
}

// prefix returns a match for paths with a prefix, and for headers.
func prefix(path string, headers ...*routev3.HeaderMatcher) *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: path}, Headers: headers}
}

// edsCluster returns a cluster whose endpoints come by EDS. If endpoints is empty, they have the cluster's
// name.
func edsCluster(name, endpoints string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: endpoints},
		LbPolicy:             clusterv3.Cluster_ROUND_ROBIN,
	}
}

// plainCluster returns a cluster with nothing but a name and a content.
func plainCluster(name, content string) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: name, AltStatName: content}
}

// aggregateCluster returns a cluster that uses the first available one of other clusters.
func aggregateCluster(t testing.TB, name string, of ...string) *clusterv3.Cluster {
	t.Helper()
	return &clusterv3.Cluster{
		Name: name,
		ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name:        "envoy.clusters.aggregate",
			TypedConfig: toAny(t, &aggregatev3.ClusterConfig{Clusters: of}),
		}},
		LbPolicy: clusterv3.Cluster_ROUND_ROBIN, // Envoy requires CLUSTER_PROVIDED, which gRPC rejects
	}
}

// endpointsAt returns endpoints with these addresses.
func endpointsAt(t testing.TB, name string, addresses ...string) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	var endpoints []*endpointv3.LbEndpoint
	for _, address := range addresses {
		host, portText, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		portValue, err := strconv.ParseUint(portText, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		endpoints = append(endpoints, lbEndpoint(host, uint32(portValue)))
	}
	return locality(name, endpoints...)
}

// plainEndpoints returns endpoints with nothing but a name and a content, which is a port.
func plainEndpoints(name string, content uint32) *endpointv3.ClusterLoadAssignment {
	return locality(name, lbEndpoint("127.0.0.1", content))
}

func locality(name string, endpoints ...*endpointv3.LbEndpoint) *endpointv3.ClusterLoadAssignment {
	assignment := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	if len(endpoints) > 0 {
		assignment.Endpoints = []*endpointv3.LocalityLbEndpoints{{
			Locality:            &corev3.Locality{Region: "here"},
			LoadBalancingWeight: wrapperspb.UInt32(1),
			LbEndpoints:         endpoints,
		}}
	}
	return assignment
}

func lbEndpoint(host string, portValue uint32) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: portValue},
		}}},
	}}}
}

func toAny(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	wrapped, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return wrapped
}

// encode returns the bytes that go-control-plane sends for a resource.
func encode(m proto.Message) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err) // cannot happen: the message is valid
	}
	return string(b)
}

// typeOf returns the type URL of a message.
func typeOf(m proto.Message) string {
	return "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
}

// innerName returns the name inside an encoded resource: the last field with number 1.
func innerName(value []byte) (name string) {
	for len(value) > 0 {
		num, typ, n := protowire.ConsumeTag(value)
		if n < 0 {
			return name
		}
		size := protowire.ConsumeFieldValue(num, typ, value[n:])
		if size < 0 {
			return name
		}
		if num == 1 && typ == protowire.BytesType {
			b, _ := protowire.ConsumeBytes(value[n:])
			name = string(b)
		}
		value = value[n+size:]
	}
	return name
}

// nameOf returns the name of a resource.
func nameOf(m proto.Message) string { return innerName([]byte(encode(m))) }

// versioned returns a resource as delta sends it.
func versioned(t testing.TB, version string, m proto.Message) *discoveryv3.Resource {
	t.Helper()
	return &discoveryv3.Resource{Name: nameOf(m), Version: version, Resource: toAny(t, m)}
}
