package cache

import "strings"

// lbEndpoint is the one type of the API, besides collections, whose field 1 is not
// a name.
const lbEndpoint = "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint"

// HasInnerName says whether resources of a type carry their name inside, in field
// 1. Those that do not have it outside only, in a Resource: list collections, whose
// field 1 is their entries, and redirects. TP1: "List", "Server redirects".
func HasInnerName(typeURL string) bool {
	switch typeURL {
	case lbEndpoint, LocatorTypeURL:
		return false
	}
	return !strings.HasSuffix(typeURL, "Collection")
}
