package integration

// form is a form of the xDS protocol, as the configuration calls it.
type form string

const (
	delta form = "delta"
	sotw  form = "sotw"
	auto  form = "auto" // of an upstream: whichever it speaks
)

// topic is a name of a type, or its wildcard.
type topic struct{ typeURL, name string }

// wildcard is the name of all there is.
const wildcard = "*"

// endsSets says that in SotW a response of that type is the whole of what was
// requested, so that what is missing in it is gone.
func endsSets(typeURL string) bool { return typeURL == listenerType || typeURL == clusterType }
