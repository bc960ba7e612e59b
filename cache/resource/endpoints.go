package resource

import "github.com/xds-relay/xds-relay/internal/wire"

// EndpointsOf returns the name of the ClusterLoadAssignment that a Cluster requests, or would request if it were of
// type EDS: eds_cluster_config.service_name, or the cluster's own name.
func EndpointsOf(cluster *Resource) string {
	// The relay stores no Cluster that is undecodable.
	config, _ := cluster.Last(wire.ClusterEDSConfig)
	service, _ := wire.Last(config, wire.EDSServiceName)
	if len(service) == 0 {
		service, _ = cluster.Last(wire.ClusterName)
	}
	return string(service)
}
