package session

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/cache"
)

// Fields of envoy.config.cluster.v3.Cluster.
const (
	clusterName      protowire.Number = 1
	clusterEDSConfig protowire.Number = 3
	edsServiceName   protowire.Number = 2 // of Cluster.EdsClusterConfig
)

// EndpointsOf returns the name of the ClusterLoadAssignment that a Cluster asks
// for, or would if it were of type EDS: eds_cluster_config.service_name, or the
// cluster's own name.
//
// xDS: "Resource warming": Envoy warms a changed Cluster anew, and waits for a
// response with its endpoints without asking for one, as it is subscribed to them
// already. So they are sent again after the Cluster, changed or not.
func EndpointsOf(cluster *cache.Resource) string {
	if service := stringField(bytesField(cluster.Value(), clusterEDSConfig), edsServiceName); service != "" {
		return service
	}
	return stringField(cluster.Value(), clusterName)
}

func stringField(message []byte, num protowire.Number) string {
	return string(bytesField(message, num))
}

// bytesField returns the last value of a length-delimited field, nil if there is
// none.
func bytesField(message []byte, num protowire.Number) (value []byte) {
	for len(message) > 0 {
		n, typ, size := protowire.ConsumeTag(message)
		if size < 0 {
			return value
		}
		message = message[size:]
		if n == num && typ == protowire.BytesType {
			value, size = protowire.ConsumeBytes(message)
		} else {
			size = protowire.ConsumeFieldValue(n, typ, message)
		}
		if size < 0 {
			return value
		}
		message = message[size:]
	}
	return value
}
