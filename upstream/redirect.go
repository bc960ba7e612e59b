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
	return u.String(), checkTarget(typeURL, u)
}

// checkTarget says why a URL cannot take the place of a resource of a type: it is
// another one's, or that of a collection.
func checkTarget(typeURL string, u urn.URL) error {
	want := typeURL[strings.LastIndexByte(typeURL, '/')+1:]
	key := u.Key()
	_, entry := u.Entry()
	switch {
	case key.Glob:
		return fmt.Errorf("is a redirect to the glob collection %s (want the name of one resource)", key.Name)
	case entry && key.Type != want+"Collection":
		return fmt.Errorf("is a redirect to an entry of %s, which is no %sCollection", key.Name, want)
	case !entry && key.Type != want:
		return fmt.Errorf("is a redirect to %s, which is no %s", key.Name, want)
	}
	if alt, ok := u.Alt(); ok {
		return checkTarget(typeURL, alt)
	}
	return nil
}

// errUnnamedRedirect says that a redirect cannot be kept under anything: there is
// no name in it.
var errUnnamedRedirect = errors.New("is a redirect and has no name (want it in a Resource)")
