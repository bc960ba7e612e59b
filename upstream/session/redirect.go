package session

import (
	"errors"
	"fmt"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "Server redirects": a ResourceLocator in place of a resource says where
// to find it. The session stores it as it is; package collections follows it.

// parseRedirect returns the URL of a ResourceLocator that came in place
// of a resource of a type. The error says why it cannot be followed.
func parseRedirect(typeURL string, value []byte) (url string, err error) {
	m := &xdscorev3.ResourceLocator{}
	if err := proto.Unmarshal(value, m); err != nil {
		return "", fmt.Errorf("is no xds.core.v3.ResourceLocator: %s", wire.ErrorText(err))
	}
	u, err := urn.URLFromProto(m)
	if err != nil {
		return "", fmt.Errorf("is a redirect that cannot be followed: %w", err)
	}
	if err := u.CheckTarget(xdstype.Message(typeURL)); err != nil {
		return "", fmt.Errorf("is a redirect that cannot be followed: %w", err)
	}
	return u.String(), nil
}

// errUnnamedRedirect says that a redirect has no key, as a ResourceLocator has no name in it.
var errUnnamedRedirect = errors.New("is a redirect and has no name (want it in a Resource)")
