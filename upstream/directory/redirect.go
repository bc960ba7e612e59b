package directory

import (
	"errors"
	"fmt"
	"strings"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// redirect checks a Resource with a ResourceLocator in place of the resource, and
// encodes it for the cache. Its type is that of its DiscoveryResponse, or that in its
// xdstp name.
// TP1: "Server redirects".
func (r *reader) redirect(name string, m *discoveryv3.Resource) (item, error) {
	switch {
	case name == "":
		return item{}, errors.New("a redirect has no name (give it in a Resource: name, and the ResourceLocator as resource)")
	case m.Ttl != nil:
		return item{}, fmt.Errorf("the redirect %q has a ttl, which nothing would renew (remove it)", name)
	}
	typeURL := r.want
	if urn.IsXdstp(name) {
		key, err := urn.KeyOf(name)
		if err != nil {
			return item{}, err
		}
		if typeURL == "" {
			typeURL = xdstype.Prefix + key.Type
		}
	}
	if typeURL == "" {
		return item{}, fmt.Errorf("the redirect %q has no type (give it an xdstp name, or put it into a DiscoveryResponse with type_url)", name)
	}
	locator := &xdscorev3.ResourceLocator{}
	if err := proto.Unmarshal(m.GetResource().GetValue(), locator); err != nil {
		return item{}, fmt.Errorf("the redirect %q: %w", name, err)
	}
	u, err := urn.URLFromProto(locator)
	if err != nil {
		return item{}, fmt.Errorf("the redirect %q: %w", name, err)
	}
	if err := u.CheckTarget(strings.TrimPrefix(typeURL, xdstype.Prefix)); err != nil {
		return item{}, fmt.Errorf("the redirect %q: %w", name, err)
	}
	return r.encode(name, typeURL, m, u.String())
}
