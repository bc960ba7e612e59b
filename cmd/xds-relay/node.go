package main

// As whom the relay asks control planes.

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/configs"
)

// transportFeatures are the client features that say what the one at the other end
// of the stream understands of the protocol, which upstream is the relay, whoever
// its clients are: all spellings that there have been. The relay has all of them.
// Other features are about what is in the resources, for those who use them.
// xDS: "Well Known Client Features"; gRPC spells the second as the first.
var transportFeatures = []string{
	"xds.config.resource-in-sotw",
	"xds.config.supports-resource-in-sotw",
	"xds.config.supports-resource-ttl",
	"envoy.config.resource-in-sotw",
	"envoy.config.supports-resource-ttl",
}

// relayFeatures are those that the relay announces: in the names that are in use.
var relayFeatures = transportFeatures[:3:3]

// relayNode is how the relay names itself.
func relayNode(cfg *configs.Config) *corev3.Node {
	node := cfg.Node.Proto()
	node.UserAgentName = "xds-relay"
	node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: version()}
	node.ClientFeatures = slices.Clone(relayFeatures)
	return node
}

// nodeFor is how the relay names itself when it stands for a client: as that, but
// with its own understanding of the protocol.
func nodeFor(client *corev3.Node) *corev3.Node {
	node := proto.CloneOf(client)
	node.ClientFeatures = slices.DeleteFunc(node.ClientFeatures, func(feature string) bool {
		return slices.Contains(transportFeatures, feature)
	})
	node.ClientFeatures = append(node.ClientFeatures, relayFeatures...)
	return node
}
