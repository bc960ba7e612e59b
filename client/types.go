package client

import (
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// TypeOfName returns the type URL that an xdstp name carries, or "" for an old-style
// name. The error is for a bad xdstp name.
func TypeOfName(name string) (string, error) {
	if !urn.IsXdstp(name) {
		return "", nil
	}
	url, err := urn.ParseURL(name)
	if err != nil {
		return "", err
	}
	return xdstype.Prefix + url.Key().Type, nil
}
