package client

// Resource types by the names that people use for them.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/urn"
)

// typePrefix begins every type URL.
const typePrefix = "type.googleapis.com/"

const (
	listenerType = typePrefix + "envoy.config.listener.v3.Listener"
	clusterType  = typePrefix + "envoy.config.cluster.v3.Cluster"
	redirectType = typePrefix + "xds.core.v3.ResourceLocator"
)

// shortTypes has the words for each type, the one that people are told first.
var shortTypes = []struct {
	url   string
	names []string
}{
	{listenerType, []string{"listener", "lds"}},
	{typePrefix + "envoy.config.route.v3.RouteConfiguration", []string{"route", "rds"}},
	{typePrefix + "envoy.config.route.v3.ScopedRouteConfiguration", []string{"scoped-route", "srds"}},
	{typePrefix + "envoy.config.route.v3.VirtualHost", []string{"virtual-host", "vhds"}},
	{clusterType, []string{"cluster", "cds"}},
	{typePrefix + "envoy.config.endpoint.v3.ClusterLoadAssignment", []string{"endpoint", "eds"}},
	{typePrefix + "envoy.extensions.transport_sockets.tls.v3.Secret", []string{"secret", "sds"}},
	{typePrefix + "envoy.service.runtime.v3.Runtime", []string{"runtime", "rtds"}},
	{typePrefix + "envoy.config.core.v3.TypedExtensionConfig", []string{"extension", "ecds"}},
}

// ShortTypes lists the words that ParseType knows, for help and errors.
func ShortTypes() string {
	var words []string
	for _, t := range shortTypes {
		words = append(words, strings.Join(t.names, "|"))
	}
	return strings.Join(words, ", ")
}

// ParseType gives the type URL for a short name ("cluster", "cds"), a message
// name ("envoy.config.cluster.v3.Cluster") or a type URL.
func ParseType(s string) (string, error) {
	for _, t := range shortTypes {
		if slices.Contains(t.names, strings.ToLower(s)) {
			return t.url, nil
		}
	}
	switch {
	case strings.Contains(s, "/"):
		return s, nil
	case strings.Contains(s, "."):
		return typePrefix + s, nil
	}
	return "", fmt.Errorf("unknown type %q (want one of %s, or a type URL)", s, ShortTypes())
}

// TypeWord is the short name of a type URL, or the message's name where there
// is none.
func TypeWord(typeURL string) string {
	for _, t := range shortTypes {
		if typeURL == t.url {
			return t.names[0]
		}
	}
	return typeURL[strings.LastIndexByte(typeURL, '/')+1:]
}

// TypeOfName gives the type URL that an xdstp name carries, and "" for an
// old-style name. The error is for a bad xdstp name.
func TypeOfName(name string) (string, error) {
	if !urn.IsName(name) {
		return "", nil
	}
	url, err := urn.ParseURL(name)
	if err != nil {
		return "", err
	}
	return typePrefix + url.Key().Type, nil
}
