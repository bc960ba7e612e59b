package session

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
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
	// isEnvoy: in SotW, the client is sent a whole resource instead of a heartbeat. The whole resource renews the TTL,
	// too. Envoy needs this: it treats a full state in which a member is a heartbeat as one without that member, and
	// takes no notice of the heartbeats of names. It takes TTLs without announcing that: see ttlForm. See also
	// Delta.timesOut.
	isEnvoy bool
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
	a.isEnvoy = slices.Contains([]string{"envoy", "envoy-mobile"}, node.GetUserAgentName())
	return a
}

// ttlForm returns the client's form for a type. In SotW, Envoy gets TTLs of runtime layers only: Envoy 1.40 crashes when
// the endpoints on an aggregated SotW stream expire.
func (a *Abilities) ttlForm(typeURL string, sotw bool) cache.Form {
	if a.isEnvoy && (!sotw || xdstype.Of(typeURL) == xdstype.Runtime) {
		return a.Form | cache.WithTTL
	}
	return a.Form
}
