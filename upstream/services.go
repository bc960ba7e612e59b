package upstream

import (
	"slices"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionservice "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimeservice "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	secretservice "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"

	"github.com/xds-relay/xds-relay/typeurl"
)

// service is how one type is asked for without the aggregated service.
// xDS: "API flow", "REST-JSON polling subscriptions".
type service struct {
	typeURL string
	// The methods of the type's own service, and the path of REST-JSON. Empty
	// where the API defines none.
	delta, sotw, rest string
}

var services = []service{
	{
		typeURL: typeurl.ListenerV3,
		delta:   listenerservice.ListenerDiscoveryService_DeltaListeners_FullMethodName,
		sotw:    listenerservice.ListenerDiscoveryService_StreamListeners_FullMethodName,
		rest:    "/v3/discovery:listeners",
	},
	{
		typeURL: typeurl.RouteV3,
		delta:   routeservice.RouteDiscoveryService_DeltaRoutes_FullMethodName,
		sotw:    routeservice.RouteDiscoveryService_StreamRoutes_FullMethodName,
		rest:    "/v3/discovery:routes",
	},
	{
		typeURL: typeurl.ScopedRouteV3,
		delta:   routeservice.ScopedRoutesDiscoveryService_DeltaScopedRoutes_FullMethodName,
		sotw:    routeservice.ScopedRoutesDiscoveryService_StreamScopedRoutes_FullMethodName,
		rest:    "/v3/discovery:scoped-routes",
	},
	{
		typeURL: typeurl.VirtualHostV3,
		delta:   routeservice.VirtualHostDiscoveryService_DeltaVirtualHosts_FullMethodName,
	},
	{
		typeURL: typeurl.ClusterV3,
		delta:   clusterservice.ClusterDiscoveryService_DeltaClusters_FullMethodName,
		sotw:    clusterservice.ClusterDiscoveryService_StreamClusters_FullMethodName,
		rest:    "/v3/discovery:clusters",
	},
	{
		typeURL: typeurl.EndpointsV3,
		delta:   endpointservice.EndpointDiscoveryService_DeltaEndpoints_FullMethodName,
		sotw:    endpointservice.EndpointDiscoveryService_StreamEndpoints_FullMethodName,
		rest:    "/v3/discovery:endpoints",
	},
	{
		typeURL: typeurl.LocalityEndpointV3,
		delta:   endpointservice.LocalityEndpointDiscoveryService_DeltaLocalityEndpoints_FullMethodName,
	},
	{
		typeURL: typeurl.SecretV3,
		delta:   secretservice.SecretDiscoveryService_DeltaSecrets_FullMethodName,
		sotw:    secretservice.SecretDiscoveryService_StreamSecrets_FullMethodName,
		rest:    "/v3/discovery:secrets",
	},
	{
		typeURL: typeurl.RuntimeV3,
		delta:   runtimeservice.RuntimeDiscoveryService_DeltaRuntime_FullMethodName,
		sotw:    runtimeservice.RuntimeDiscoveryService_StreamRuntime_FullMethodName,
		rest:    "/v3/discovery:runtime",
	},
	{
		typeURL: typeurl.ExtensionConfigV3,
		delta:   extensionservice.ExtensionConfigDiscoveryService_DeltaExtensionConfigs_FullMethodName,
		sotw:    extensionservice.ExtensionConfigDiscoveryService_StreamExtensionConfigs_FullMethodName,
		rest:    "/v3/discovery:extension_configs",
	},
}

// serviceForms returns the forms in which a type can be asked for on a stream of
// its own under a protocol, in the order in which they are tried.
func serviceForms(typeURL string, p Protocol) (forms []*form) {
	add := func(base *form, name Protocol, method string) {
		if method != "" {
			f := *base
			f.name, f.method, f.typeURL = name, method, typeURL
			forms = append(forms, &f)
		}
	}
	for i := range services {
		s := &services[i]
		if s.typeURL != typeURL {
			continue
		}
		if p == REST {
			add(sotwForm, REST, s.rest)
			continue
		}
		if p != SotW {
			add(deltaForm, Delta, s.delta)
		}
		if p != Delta {
			add(sotwForm, SotW, s.sotw)
		}
	}
	if p == AutoSotW {
		slices.Reverse(forms)
	}
	return forms
}
