package session

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/wire"
)

// EndpointsOf returns the name of the ClusterLoadAssignment that a Cluster requests, or would request if it were of
// type EDS: eds_cluster_config.service_name, or the cluster's own name.
//
// xDS: "Resource warming": Envoy warms a changed Cluster again, and waits for a response with its endpoints without
// requesting them, because it has already subscribed to them. So the relay sends them again after the Cluster, changed
// or not.
func EndpointsOf(cluster *cache.Resource) string {
	// The relay stores no Cluster that is undecodable.
	config, _ := wire.Last(cluster.Value(), wire.ClusterEDSConfig)
	service, _ := wire.Last(config, wire.EDSServiceName)
	if len(service) == 0 {
		service, _ = wire.Last(cluster.Value(), wire.ClusterName)
	}
	return string(service)
}
