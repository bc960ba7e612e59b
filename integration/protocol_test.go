package integration

// form is a form of the xDS protocol, by its name in the configuration.
type form string

const (
	delta form = "delta"
	sotw  form = "sotw"
	auto  form = "auto" // upstream only: the form that the server supports
)

// topic is a resource name of a type, or the type's wildcard.
type topic struct{ typeURL, name string }

// wildcard is the name that requests all resources of a type.
const wildcard = "*"

// endsSets reports whether a SotW response of a type has all requested resources, so that a missing resource
// does not exist.
func endsSets(typeURL string) bool { return typeURL == listenerType || typeURL == clusterType }
