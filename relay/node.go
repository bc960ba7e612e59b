package relay

// As whom the relay asks control planes.

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/upstream"
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
	setUserAgent(node)
	node.ClientFeatures = slices.Clone(relayFeatures)
	return node
}

// nodeFor is how the relay names itself for the clients of a partition, of which client is
// the first: with these fields of its Node, with the relay's own understanding of the
// protocol, and with the relay's user agent if the client's is not among the fields. The
// result shares what it can with client, and neither may be changed afterwards.
func nodeFor(fields configs.NodeFields, client *corev3.Node) *corev3.Node {
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
	node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: version()}
}

// protocolFor is the form of xDS in which a server is asked for a node.
//
// Istio tells proxyless gRPC apart by GENERATOR in the node's metadata. In delta it
// forgets, for such a node, the clusters and listeners of earlier requests when
// there is another, and does not tell their changes: so it is asked in SotW, which
// is what these clients speak to it themselves.
func protocolFor(s configs.Server, node *corev3.Node) upstream.Protocol {
	if s.Protocol == configs.ProtocolAuto && node.GetMetadata().GetFields()["GENERATOR"].GetStringValue() == "grpc" {
		return upstream.AutoSotW
	}
	return upstream.Protocol(s.Protocol)
}
