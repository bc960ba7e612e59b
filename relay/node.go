package relay

// The Node, user agent and protocol that the relay uses with control planes.

import (
	"runtime/debug"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/upstream"
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

// relayNode returns the relay's own Node.
func relayNode(cfg *configs.Config) *corev3.Node {
	node := cfg.Node.Proto()
	setUserAgent(node)
	node.ClientFeatures = slices.Clone(relayFeatures)
	return node
}

// nodeFor returns the Node that the relay sends for a partition whose first client has the Node client. It has the
// given fields of that Node, the relay's own transport features, and the relay's user agent unless the fields include
// the client's. The result shares memory with client, so neither may be changed afterwards.
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

// protocolFor returns the protocol that the relay speaks with a server for a Node.
//
// Istio recognizes proxyless gRPC by GENERATOR in the Node's metadata. With such a Node, its
// delta server forgets the clusters and listeners of earlier requests and does not send
// their changes. So the relay speaks SotW, as these clients do with Istio.
func protocolFor(s configs.Server, node *corev3.Node) upstream.Protocol {
	if s.Protocol == configs.ProtocolAuto && node.GetMetadata().GetFields()["GENERATOR"].GetStringValue() == "grpc" {
		return upstream.AutoSotW
	}
	return upstream.Protocol(s.Protocol)
}

// version returns the module version of the build.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
