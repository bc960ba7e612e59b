package client

// Servers to ask: go-control-plane's, and one that does what a test says.

import (
	"context"
	"net"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// listen serves ads on address (127.0.0.1:0 for any port) until the test ends or
// the server is stopped.
func listen(t *testing.T, address string, ads discoveryv3.AggregatedDiscoveryServiceServer) (string, *grpc.Server) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, ads)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return listener.Addr().String(), server
}

const nodeID = "test"

// controlPlane is a go-control-plane server with one snapshot.
type controlPlane struct {
	cache  cachev3.SnapshotCache
	server serverv3.Server
}

func newControlPlane(t *testing.T) controlPlane {
	t.Helper()
	cache := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	return controlPlane{cache: cache, server: serverv3.NewServer(t.Context(), cache, nil)}
}

func (c controlPlane) set(t *testing.T, version string, resources map[resourcev3.Type][]types.Resource) {
	t.Helper()
	snapshot, err := cachev3.NewSnapshot(version, resources)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cache.SetSnapshot(context.Background(), nodeID, snapshot); err != nil {
		t.Fatal(err)
	}
}

// puppet is a delta server that answers each request with the next of the given
// responses, as long as it has any, and hands the requests to the test.
type puppet struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	responses []*discoveryv3.DeltaDiscoveryResponse
	requests  chan *discoveryv3.DeltaDiscoveryRequest
}

// DeltaAggregatedResources serves one stream.
func (p *puppet) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for i := 0; ; i++ {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case p.requests <- request:
		default:
		}
		if i < len(p.responses) {
			if err := stream.Send(p.responses[i]); err != nil {
				return err
			}
		}
	}
}

func testQuery(protocol Protocol, typeURL string, names ...string) Query {
	return Query{Protocol: protocol, TypeURL: typeURL, Names: names, Node: &corev3.Node{Id: nodeID}}
}
