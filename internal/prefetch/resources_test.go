package prefetch

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
)

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
}

func packed(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// resource makes a resource of a type that refers to others.
func resource(t testing.TB, word, name string, to ...string) *cache.Resource {
	t.Helper()
	var m proto.Message
	switch word {
	case "listener":
		m = listener(t, name, to)
	case "scoped":
		m = &routev3.ScopedRouteConfiguration{Name: name, RouteConfigurationName: to[0]}
	case "route":
		r := &routev3.RouteConfiguration{Name: name}
		for _, cluster := range to {
			r.VirtualHosts = append(r.VirtualHosts, &routev3.VirtualHost{Name: cluster, Routes: []*routev3.Route{{
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}},
			}}})
		}
		m = r
	case "cluster":
		m = cluster(t, name, to)
	case "endpoint":
		m = &clusterv3.Cluster{Name: name} // whatever there is
	}
	return cache.NewResource(cache.Spec{Name: name, TypeURL: words[word], Value: packed(t, m).GetValue()})
}

// listener has a filter chain for each RouteConfiguration, and needs a Secret.
func listener(t testing.TB, name string, to []string) *listenerv3.Listener {
	l := &listenerv3.Listener{Name: name}
	for _, route := range to {
		manager := &managerv3.HttpConnectionManager{RouteSpecifier: &managerv3.HttpConnectionManager_Rds{
			Rds: &managerv3.Rds{RouteConfigName: route, ConfigSource: ads()},
		}}
		secret := &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "secret", SdsConfig: ads()}},
		}}
		l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{
			Filters:         []*listenerv3.Filter{{Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, manager)}}},
			TransportSocket: &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(t, secret)}},
		})
	}
	return l
}

func cluster(t testing.TB, name string, to []string) *clusterv3.Cluster {
	if len(to) == 0 {
		return &clusterv3.Cluster{
			Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()},
		}
	}
	return &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.clusters.aggregate", TypedConfig: packed(t, &aggregatev3.ClusterConfig{Clusters: to}),
	}}}
}
