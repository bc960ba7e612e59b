package downstream

// Type URLs of which the protocol says something that it does not say of all.
const (
	listenerType    = "type.googleapis.com/envoy.config.listener.v3.Listener"
	clusterType     = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	endpointType    = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	routeType       = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	scopedRouteType = "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration"
	secretType      = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	virtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

// rank is a type's place in the order in which additions and changes are sent
// on an aggregated stream. xDS: "Eventual consistency considerations".
func rank(typeURL string) int {
	switch typeURL {
	case clusterType:
		return 0
	case endpointType:
		return 1
	case listenerType:
		return 2
	case routeType:
		return 3
	case scopedRouteType:
		return 4
	case virtualHostType:
		return 5
	default:
		return 6
	}
}
