package graph

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// This file lists the fields that are references. TestFieldsThatNameResources checks the tables against Envoy's API.

// target describes the resource that a field names.
type target struct {
	typeURL string
	// source is the field with the config source, in the same message. It is empty for types that have none.
	source protoreflect.Name
	// optional and many are as in Reference.
	optional, many bool
}

var (
	cluster = target{typeURL: xdstype.ClusterV3}
	// helper is a cluster that does not carry the traffic itself: a service that is called for it, or that receives a
	// copy. Such clusters are often in the bootstrap.
	helper = target{typeURL: xdstype.ClusterV3, optional: true}
	// anyCluster is for fields that define how a request selects its cluster.
	anyCluster = target{typeURL: xdstype.ClusterV3, many: true}
	listener   = target{typeURL: xdstype.ListenerV3}
)

// routesFrom returns the target for another type of routes, which clients discover like RouteConfigurations.
func routesFrom(message string) target {
	return target{typeURL: xdstype.Prefix + message, source: "config_source"}
}

// nameFields are fields with the name of a resource, or a list of names.
var nameFields = map[protoreflect.FullName]target{
	// Routes
	"envoy.config.route.v3.RouteAction.cluster":                                               cluster,
	"envoy.config.route.v3.WeightedCluster.ClusterWeight.name":                                cluster,
	"envoy.config.route.v3.RouteAction.RequestMirrorPolicy.cluster":                           cluster,
	"envoy.extensions.router.cluster_specifiers.lua.v3.LuaConfig.default_cluster":             cluster,
	"envoy.extensions.router.cluster_specifiers.matcher.v3.ClusterAction.cluster":             cluster,
	"envoy.extensions.router.cluster_specifiers.priority_group.v3.ClusterWeight.cluster_name": cluster,
	"envoy.config.route.v3.ScopedRouteConfiguration.route_configuration_name":                 {typeURL: xdstype.RouteV3},
	"envoy.extensions.filters.network.http_connection_manager.v3.Rds.route_config_name":       {typeURL: xdstype.RouteV3, source: "config_source"},

	// Clusters of which one is chosen for each request
	"envoy.config.route.v3.RouteAction.cluster_header":                            anyCluster,
	"envoy.config.route.v3.WeightedCluster.ClusterWeight.cluster_header":          anyCluster,
	"envoy.config.route.v3.RouteAction.RequestMirrorPolicy.cluster_header":        anyCluster,
	"envoy.config.route.v3.RouteAction.cluster_specifier_plugin":                  anyCluster,
	"envoy.extensions.filters.network.thrift_proxy.v3.RouteAction.cluster_header": anyCluster,

	// Clusters
	"envoy.extensions.clusters.aggregate.v3.ClusterConfig.clusters":                  cluster,
	"envoy.extensions.clusters.mcp_multicluster.v3.ClusterConfig.McpCluster.cluster": cluster,

	// Network filters
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.cluster":                                            cluster,
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight.name":                 cluster,
	"envoy.extensions.filters.udp.udp_proxy.v3.Route.cluster":                                                   cluster,
	"envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig.cluster":                                          cluster,
	"envoy.extensions.filters.network.redis_proxy.v3.RedisProxy.PrefixRoutes.Route.cluster":                     cluster,
	"envoy.extensions.filters.network.redis_proxy.v3.RedisProxy.PrefixRoutes.Route.RequestMirrorPolicy.cluster": cluster,
	"envoy.extensions.filters.network.redis_proxy.v3.RedisProxy.PrefixRoutes.Route.ReadCommandPolicy.cluster":   cluster,
	"envoy.extensions.filters.network.thrift_proxy.v3.RouteAction.cluster":                                      cluster,
	"envoy.extensions.filters.network.thrift_proxy.v3.RouteAction.RequestMirrorPolicy.cluster":                  cluster,
	"envoy.extensions.filters.network.thrift_proxy.v3.WeightedCluster.ClusterWeight.name":                       cluster,
	"envoy.extensions.filters.network.dubbo_proxy.v3.RouteAction.cluster":                                       cluster,
	"envoy.extensions.filters.network.generic_proxy.action.v3.RouteAction.cluster":                              cluster,
	"envoy.extensions.filters.network.thrift_proxy.v3.Trds.route_config_name":                                   routesFrom("envoy.extensions.filters.network.thrift_proxy.v3.RouteConfiguration"),
	"envoy.extensions.filters.network.dubbo_proxy.v3.Drds.route_config_name":                                    routesFrom("envoy.extensions.filters.network.dubbo_proxy.v3.MultipleRouteConfiguration"),
	"envoy.extensions.filters.network.generic_proxy.v3.GenericRds.route_config_name":                            routesFrom("envoy.extensions.filters.network.generic_proxy.v3.RouteConfiguration"),

	// HTTP filters
	"envoy.extensions.filters.http.cache_v2.v3.CacheV2Config.override_upstream_cluster": cluster,
	"envoy.extensions.filters.http.mcp_router.v3.McpRouter.McpCluster.cluster":          cluster,
	"envoy.extensions.filters.http.gcp_authn.v3.GcpAuthnFilterConfig.cluster":           helper,

	// Calls of other services: ext_authz, ratelimit, access logs, tracing, ...
	"envoy.config.core.v3.GrpcService.EnvoyGrpc.cluster_name":                   helper,
	"envoy.config.core.v3.HttpUri.cluster":                                      helper,
	"envoy.config.core.v3.ApiConfigSource.cluster_names":                        helper,
	"envoy.config.trace.v3.DatadogConfig.collector_cluster":                     helper,
	"envoy.config.trace.v3.LightstepConfig.collector_cluster":                   helper,
	"envoy.config.trace.v3.ZipkinConfig.collector_cluster":                      helper,
	"envoy.config.metrics.v3.StatsdSink.tcp_cluster_name":                       helper,
	"envoy.extensions.access_loggers.fluentd.v3.FluentdAccessLogConfig.cluster": helper,
	"envoy.extensions.tracers.fluentd.v3.FluentdConfig.cluster":                 helper,

	// Secrets
	"envoy.extensions.transport_sockets.tls.cert_selectors.on_demand_secret.v3.Config.prefetch_secret_names": {typeURL: xdstype.SecretV3, source: "config_source"},

	// Endpoints
	"envoy.config.core.v3.EnvoyInternalAddress.server_listener_name": listener,
	"envoy.config.endpoint.v3.LedsClusterLocalityConfig.leds_collection_name": {
		typeURL: xdstype.LocalityEndpointV3, source: "leds_config", many: true,
	},
}

// messageFields are the messages whose references depend on several of their fields.
var messageFields = map[protoreflect.FullName]func(*walk, protoreflect.Message){
	"envoy.config.cluster.v3.Cluster":                                       (*walk).endpoints,
	"envoy.config.route.v3.RouteConfiguration":                              (*walk).virtualHosts,
	"envoy.extensions.filters.network.http_connection_manager.v3.ScopedRds": (*walk).scopes,
	"envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig":             (*walk).secret,
	// Messages with the name of an extension and a field config_discovery.
	"envoy.config.cluster.v3.Filter":                                         (*walk).extension,
	"envoy.config.listener.v3.Filter":                                        (*walk).extension,
	"envoy.config.listener.v3.ListenerFilter":                                (*walk).extension,
	"envoy.extensions.filters.http.composite.v3.DynamicConfig":               (*walk).extension,
	"envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter": (*walk).extension,
	"envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig.SessionFilter": (*walk).extension,
}

const (
	anyName = "google.protobuf.Any"
	// opaque contains metadata for extensions, which references no resources.
	opaque = "envoy.config.core.v3.Metadata"
	// lookupPlugin is gRPC's RouteLookupClusterSpecifier. No importable package has it.
	lookupPlugin = xdstype.Prefix + "grpc.lookup.v1.RouteLookupClusterSpecifier"
)
