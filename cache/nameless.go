package cache

import (
	"strings"

	"github.com/xds-relay/xds-relay/typeurl"
)

// Types that always have their name outside: field 1 of these is something else.
const (
	lbEndpoint = typeurl.LocalityEndpointV3
	// Istio's, of its ambient mesh.
	istioAddress  = typeurl.Prefix + "istio.workload.Address"
	istioWorkload = typeurl.Prefix + "istio.workload.Workload"
)

// HasInnerName says whether resources of a type carry their name inside, in field
// 1. Those that do not have it outside only, in a Resource: list collections, whose
// field 1 is their entries, and redirects. TP1: "List", "Server redirects". Or they
// have none at all, and their [Resource.Name] is empty.
func HasInnerName(typeURL string) bool {
	switch typeURL {
	case lbEndpoint, istioAddress, istioWorkload, LocatorTypeURL:
		return false
	}
	return !strings.HasSuffix(typeURL, "Collection") && !typeurl.Nameless(typeURL)
}
