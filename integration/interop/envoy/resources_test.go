package envoy

// The resources of the scenarios.

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// relayCluster is the cluster that the bootstrap has for the control plane.
const relayCluster = "xds-relay"

// source returns the config source for a resource that Envoy gets from its control plane, in the side's form.
func (s *side) source() *corev3.ConfigSource {
	if s.form.aggregated {
		return &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			ResourceApiVersion:    corev3.ApiVersion_V3,
		}
	}
	api := corev3.ApiConfigSource_GRPC
	if s.form.delta {
		api = corev3.ApiConfigSource_DELTA_GRPC
	}
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:             api,
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: relayCluster},
			}}},
		}},
		ResourceApiVersion: corev3.ApiVersion_V3,
	}
}

// patient returns a config source for whose first resource Envoy waits that long.
func patient(source *corev3.ConfigSource, timeout time.Duration) *corev3.ConfigSource {
	source.InitialFetchTimeout = durationpb.New(timeout)
	return source
}

// socket returns an address of a resource.
func socket(address string) *corev3.Address {
	host, port, _ := net.SplitHostPort(address)
	number, _ := strconv.ParseUint(port, 10, 32)
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(number)},
	}}}
}

// listener returns a Listener that serves HTTP at an address, with a RouteConfiguration of its own name.
func (s *side) listener(name, address, routes string) *listenerv3.Listener {
	return listenerOf(name, address, s.manager(&hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: routes, ConfigSource: s.source()}},
	}))
}

// manager completes an HttpConnectionManager.
func (s *side) manager(m *hcmv3.HttpConnectionManager) *hcmv3.HttpConnectionManager {
	m.StatPrefix = "test"
	m.HttpFilters = append(m.HttpFilters, &hcmv3.HttpFilter{
		Name:       "envoy.filters.http.router",
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: anyOf(&routerv3.Router{})},
	})
	return m
}

// listenerOf returns a Listener with one filter chain.
func listenerOf(name, address string, m *hcmv3.HttpConnectionManager) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name:    name,
		Address: socket(address),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: anyOf(m)},
		}}}},
	}
}

// routesTo returns a RouteConfiguration that sends all requests to a cluster.
func routesTo(name, cluster string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{hostTo("all", cluster, "*")}}
}

// hostTo returns a virtual host that sends all requests to a cluster.
func hostTo(name, cluster string, domains ...string) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: name, Domains: domains, Routes: []*routev3.Route{{
		Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
		}},
	}}}
}

// cluster returns a Cluster whose endpoints come by EDS, under its own name unless service has another.
func (s *side) cluster(name, service string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ConnectTimeout:       durationpb.New(time.Second),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: s.source(), ServiceName: service},
	}
}

// endpoints returns the endpoints of a cluster.
func endpoints(cluster string, backends ...*backend) *endpointv3.ClusterLoadAssignment {
	locality := &endpointv3.LocalityLbEndpoints{}
	for _, b := range backends {
		locality.LbEndpoints = append(locality.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: socket(b.address)}},
		})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{locality}}
}

// clusterWith puts a cluster and its endpoints in a world.
func (s *side) clusterWith(w world, name string, backends ...*backend) {
	w.set(name, s.cluster(name, ""))
	w.set(name, endpoints(name, backends...))
}

// shop puts a Listener "shop", its routes, its cluster and endpoints in a world.
func (s *side) shop(w world, cluster string, b *backend) {
	w.set("shop", s.listener("shop", s.address, "routes"))
	w.set("routes", routesTo("routes", cluster))
	s.clusterWith(w, cluster, b)
}

// backend is an HTTP server that answers every request with its id.
type backend struct{ id, address string }

// host returns the backend's IP address, which no other has.
func (b *backend) host() string { return peers.Host(b.address) }

func startBackend(t testing.TB, id string) *backend {
	t.Helper()
	b := &backend{id: id, address: peers.Address(t)}
	l := peers.Listen(t, b.address)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, id)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return b
}

// withTimeout sets the initial_fetch_timeout of a Listener's RouteConfiguration.
func withTimeout(s *side, l *listenerv3.Listener, timeout *durationpb.Duration) *listenerv3.Listener {
	s.Helper()
	filter := l.GetFilterChains()[0].GetFilters()[0]
	var m hcmv3.HttpConnectionManager
	if err := filter.GetTypedConfig().UnmarshalTo(&m); err != nil {
		s.Fatal(err)
	}
	m.GetRds().GetConfigSource().InitialFetchTimeout = timeout
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: anyOf(&m)}
	return l
}
