package downstream

import (
	"slices"

	// For reflection, and for JSON.
	_ "github.com/envoyproxy/go-control-plane/envoy/api/v2"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v2"

	"github.com/xds-relay/xds-relay/typeurl"
)

// doorsV2 are the services of the v2 transport. Its messages have the form of
// v3's on the wire, and may carry resources of either version of the API.
var doorsV2 = []door{
	{"envoy.service.discovery.v2.AggregatedDiscoveryService", "envoy/service/discovery/v2/ads.proto", "", "StreamAggregatedResources", "DeltaAggregatedResources", "", ""},
	{"envoy.api.v2.ListenerDiscoveryService", "envoy/api/v2/lds.proto", typeurl.ListenerV2, "StreamListeners", "DeltaListeners", "FetchListeners", "/v2/discovery:listeners"},
	{"envoy.api.v2.RouteDiscoveryService", "envoy/api/v2/rds.proto", typeurl.RouteV2, "StreamRoutes", "DeltaRoutes", "FetchRoutes", "/v2/discovery:routes"},
	{"envoy.api.v2.ScopedRoutesDiscoveryService", "envoy/api/v2/srds.proto", typeurl.ScopedRouteV2, "StreamScopedRoutes", "DeltaScopedRoutes", "FetchScopedRoutes", "/v2/discovery:scoped-routes"},
	{"envoy.api.v2.VirtualHostDiscoveryService", "envoy/api/v2/rds.proto", typeurl.VirtualHostV2, "", "DeltaVirtualHosts", "", ""},
	{"envoy.api.v2.ClusterDiscoveryService", "envoy/api/v2/cds.proto", typeurl.ClusterV2, "StreamClusters", "DeltaClusters", "FetchClusters", "/v2/discovery:clusters"},
	{"envoy.api.v2.EndpointDiscoveryService", "envoy/api/v2/eds.proto", typeurl.EndpointsV2, "StreamEndpoints", "DeltaEndpoints", "FetchEndpoints", "/v2/discovery:endpoints"},
	{"envoy.service.discovery.v2.SecretDiscoveryService", "envoy/service/discovery/v2/sds.proto", typeurl.SecretV2, "StreamSecrets", "DeltaSecrets", "FetchSecrets", "/v2/discovery:secrets"},
	{"envoy.service.discovery.v2.RuntimeDiscoveryService", "envoy/service/discovery/v2/rtds.proto", typeurl.RuntimeV2, "StreamRuntime", "DeltaRuntime", "FetchRuntime", "/v2/discovery:runtime"},
}

// isV2 says that a type URL is one that a service of the v2 transport implies.
func isV2(typeURL string) bool {
	return slices.ContainsFunc(doorsV2, func(d door) bool { return d.typeURL != "" && d.typeURL == typeURL })
}

func (d door) isV2() bool { return isV2(d.typeURL) }
