package client

// Servers to ask: go-control-plane's, and one that does what a test says.

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/xds-relay/xds-relay/internal/testplane"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// puppet is a delta server that answers each request with the next of the given
// responses, as long as it has any, and hands the requests to the test.
type puppet struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	responses []*discoveryv3.DeltaDiscoveryResponse
	// atOnce says that the first request is answered with all responses.
	atOnce   bool
	requests chan *discoveryv3.DeltaDiscoveryRequest
}

// DeltaAggregatedResources serves one stream.
func (p *puppet) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	left := p.responses
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case p.requests <- request:
		default:
		}
		for more := true; more && len(left) > 0; more = p.atOnce {
			if err := stream.Send(left[0]); err != nil {
				return err
			}
			left = left[1:]
		}
	}
}

func testQuery(protocol Protocol, typeURL string, names ...string) Query {
	return Query{Protocol: protocol, TypeURL: typeURL, Names: names, Node: &corev3.Node{Id: testplane.NodeID}}
}
