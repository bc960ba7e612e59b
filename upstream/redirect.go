package upstream

import (
	"errors"
	"fmt"
	"strings"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "Server redirects": a ResourceLocator in the place of a resource says where
// to find it. It is kept as it is; following it is somebody else's job.

// parseRedirect returns the URL that a ResourceLocator says which came in the place
// of a resource of a type. The error says why it cannot be followed.
func parseRedirect(typeURL string, value []byte) (url string, err error) {
	m := &xdscorev3.ResourceLocator{}
	if err := proto.Unmarshal(value, m); err != nil {
		return "", fmt.Errorf("is no xds.core.v3.ResourceLocator: %s", plain(err))
	}
	u, err := urn.URLFromProto(m)
	if err != nil {
		return "", fmt.Errorf("is a redirect that cannot be followed: %w", err)
	}
	if err := u.CheckTarget(typeURL[strings.LastIndexByte(typeURL, '/')+1:]); err != nil {
		return "", fmt.Errorf("is a redirect that cannot be followed: %w", err)
	}
	return u.String(), nil
}

// errUnnamedRedirect says that a redirect cannot be kept under anything: there is
// no name in it.
var errUnnamedRedirect = errors.New("is a redirect and has no name (want it in a Resource)")

// plain returns an error without the prefix of the protobuf package, whose space is
// not always one.
func plain(err error) string {
	return strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
}
