package client

// Resource types by the names that people use for them.

import (
	"github.com/xds-relay/xds-relay/typeurl"
	"github.com/xds-relay/xds-relay/urn"
)

// typePrefix begins every type URL.
const typePrefix = typeurl.Prefix

const (
	listenerType = typeurl.ListenerV3
	clusterType  = typeurl.ClusterV3
	redirectType = typePrefix + "xds.core.v3.ResourceLocator"
)

// ShortTypes lists the words that ParseType knows, for help and errors.
func ShortTypes() string { return typeurl.Words() }

// ParseType gives the type URL for a short name ("cluster", "cds"), a message
// name ("envoy.config.cluster.v3.Cluster") or a type URL.
func ParseType(s string) (string, error) { return typeurl.Parse(s) }

// TypeWord is the short name of a type URL, or the message's name where there
// is none.
func TypeWord(typeURL string) string { return typeurl.Word(typeURL) }

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
