package downstream

import "github.com/xds-relay/xds-relay/typeurl"

// Type URLs of which the protocol says something that it does not say of all.
const (
	listenerType    = typeurl.ListenerV3
	clusterType     = typeurl.ClusterV3
	endpointType    = typeurl.EndpointsV3
	routeType       = typeurl.RouteV3
	scopedRouteType = typeurl.ScopedRouteV3
	secretType      = typeurl.SecretV3
	virtualHostType = typeurl.VirtualHostV3
)

// rank is a type's place in the order in which additions and changes are sent
// on an aggregated stream. xDS: "Eventual consistency considerations".
func rank(typeURL string) int {
	switch typeurl.KindOf(typeURL) {
	case typeurl.Cluster:
		return 0
	case typeurl.Endpoints:
		return 1
	case typeurl.Listener:
		return 2
	case typeurl.Route:
		return 3
	case typeurl.ScopedRoute:
		return 4
	case typeurl.VirtualHost:
		return 5
	default:
		return 6
	}
}
