package session

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// Client features that change what a client is sent.
// xDS: "TTL", "SotW TTL"; gRPC announces the second of the two under a name of
// its own.
const (
	FeatureTTL         = "xds.config.supports-resource-ttl"
	FeatureWrapped     = "xds.config.supports-resource-in-sotw"
	FeatureWrappedGRPC = "xds.config.resource-in-sotw"
	// featureErrorsAlone is the relay's own: the client does not take a response that has only resource_errors for an
	// empty answer. See silence.go.
	featureErrorsAlone = "xds-relay.errors-alone"
)

// Abilities are what a client states about itself in its Node, and what its listener's settings add.
type Abilities struct {
	Form cache.Form
	// heartbeatsWhole: in a full state, the client is sent a member's whole resource instead of a heartbeat. The whole
	// resource renews the TTL, too. Envoy needs this: it treats a full state in which a member is a heartbeat as one
	// without that member.
	heartbeatsWhole bool
	// Passes: redirects go to the client unchanged.
	Passes bool
	// CountsLostNames: the session counts the names whose control planes are unreachable, because streams end on which
	// nothing can be served. CountsLostSets: the same for wildcards and globs.
	CountsLostNames, CountsLostSets bool
	// errorsAlone: see featureErrorsAlone.
	errorsAlone bool
	// Relay: the client is another relay, which has clients of its own.
	Relay bool
}

// AbilitiesOf returns what a client states about itself in its Node.
func AbilitiesOf(node *corev3.Node) (a Abilities) {
	for _, feature := range node.GetClientFeatures() {
		switch feature {
		case FeatureTTL:
			a.Form |= cache.WithTTL
		case FeatureWrapped, FeatureWrappedGRPC:
			a.Form |= cache.Wrapped
		case featureErrorsAlone:
			a.errorsAlone = true
		}
	}
	a.heartbeatsWhole = slices.Contains([]string{"envoy", "envoy-mobile"}, node.GetUserAgentName())
	return a
}
