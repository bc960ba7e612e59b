package upstream

import (
	"context"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Ask polls once for all resources of a type, and returns how many the answer has. It is for a command that tries a
// control plane.
func (c *RESTConn) Ask(ctx context.Context, typeURL string, node *corev3.Node) (resources int, err error) {
	answer, err := c.poll(ctx, xdstype.Of(typeURL).Service(typeURL).Path, &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, Node: node})
	if err != nil || answer == nil {
		return 0, err
	}
	return len(answer.resources), nil
}
