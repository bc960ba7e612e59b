package partition

// The Nodes and the user agent that the relay uses with control planes.

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/process"
)

// transportFeatures are the client features about the transport protocol, in all spellings that are in use. Towards
// control planes the relay is the client, and it has all of them, whatever its own clients have. Other features are
// about resources, so the relay announces those of its clients. xDS: "Well Known Client Features"; gRPC spells the
// second as the first.
var transportFeatures = []string{
	"xds.config.resource-in-sotw",
	"xds.config.supports-resource-in-sotw",
	"xds.config.supports-resource-ttl",
	"envoy.config.resource-in-sotw",
	"envoy.config.supports-resource-ttl",
}

// relayFeatures are the features that the relay announces.
var relayFeatures = transportFeatures[:3:3]

// RelayNode returns the relay's own Node.
func RelayNode(cfg *configs.Config) *corev3.Node {
	node := cfg.Node.Proto()
	setUserAgent(node)
	node.ClientFeatures = slices.Clone(relayFeatures)
	return node
}

// NodeFor returns the Node that the relay sends for a partition whose first client has the Node client. It has the
// given fields of that Node, the relay's own transport features, and the relay's user agent unless the fields include
// the client's. The result shares memory with client, so neither may be changed afterwards.
func NodeFor(fields configs.NodeFields, client *corev3.Node) *corev3.Node {
	node := fields.Of(client)
	features := make([]string, 0, len(node.GetClientFeatures())+len(relayFeatures))
	for _, feature := range node.GetClientFeatures() {
		if !slices.Contains(transportFeatures, feature) {
			features = append(features, feature)
		}
	}
	node.ClientFeatures = append(features, relayFeatures...)
	if !fields.Whole() && node.GetUserAgentName() == "" && node.GetUserAgentVersionType() == nil {
		setUserAgent(node)
	}
	return node
}

func setUserAgent(node *corev3.Node) {
	node.UserAgentName = "xds-relay"
	node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: process.Version()}
}
