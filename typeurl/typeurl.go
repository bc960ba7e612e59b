// Package typeurl says which of the resource types that the xDS documents speak
// of a type URL stands for: their rules are about listeners or clusters, whether
// those are of the API's version 3 or 2. All other types are opaque, and Other.
package typeurl

// Prefix begins every type URL.
const Prefix = "type.googleapis.com/"

// The type URLs that a service of the API implies.
const (
	ListenerV3         = Prefix + "envoy.config.listener.v3.Listener"
	RouteV3            = Prefix + "envoy.config.route.v3.RouteConfiguration"
	ScopedRouteV3      = Prefix + "envoy.config.route.v3.ScopedRouteConfiguration"
	VirtualHostV3      = Prefix + "envoy.config.route.v3.VirtualHost"
	ClusterV3          = Prefix + "envoy.config.cluster.v3.Cluster"
	EndpointsV3        = Prefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	LocalityEndpointV3 = Prefix + "envoy.config.endpoint.v3.LbEndpoint"
	SecretV3           = Prefix + "envoy.extensions.transport_sockets.tls.v3.Secret"
	RuntimeV3          = Prefix + "envoy.service.runtime.v3.Runtime"
	ExtensionConfigV3  = Prefix + "envoy.config.core.v3.TypedExtensionConfig"

	ListenerV2    = Prefix + "envoy.api.v2.Listener"
	RouteV2       = Prefix + "envoy.api.v2.RouteConfiguration"
	ScopedRouteV2 = Prefix + "envoy.api.v2.ScopedRouteConfiguration"
	VirtualHostV2 = Prefix + "envoy.api.v2.route.VirtualHost"
	ClusterV2     = Prefix + "envoy.api.v2.Cluster"
	EndpointsV2   = Prefix + "envoy.api.v2.ClusterLoadAssignment"
	SecretV2      = Prefix + "envoy.api.v2.auth.Secret"
	RuntimeV2     = Prefix + "envoy.service.discovery.v2.Runtime"
)

// Kind is what a type URL stands for, whichever version of the API it is of.
type Kind uint8

// The kinds that the API has a service for.
const (
	Other Kind = iota
	Listener
	Route
	ScopedRoute
	VirtualHost
	Cluster
	Endpoints
	LocalityEndpoint
	Secret
	Runtime
	ExtensionConfig
)

var kinds = map[string]Kind{
	ListenerV3: Listener, ListenerV2: Listener,
	RouteV3: Route, RouteV2: Route,
	ScopedRouteV3: ScopedRoute, ScopedRouteV2: ScopedRoute,
	VirtualHostV3: VirtualHost, VirtualHostV2: VirtualHost,
	ClusterV3: Cluster, ClusterV2: Cluster,
	EndpointsV3: Endpoints, EndpointsV2: Endpoints,
	LocalityEndpointV3: LocalityEndpoint,
	SecretV3:           Secret, SecretV2: Secret,
	RuntimeV3: Runtime, RuntimeV2: Runtime,
	ExtensionConfigV3: ExtensionConfig,
}

// KindOf returns what a type URL stands for.
func KindOf(url string) Kind { return kinds[url] }

// FullState says that a SotW response is the whole state also of what is asked
// for by name, so that what is missing in it does not exist. Responses to a
// wildcard always are. xDS: "Grouping Resources into Responses".
func (k Kind) FullState() bool { return k == Listener || k == Cluster }
