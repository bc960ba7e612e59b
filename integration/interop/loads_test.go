package interop

import (
	"fmt"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
)

// loadServer is the load reporting service (LRS) of a control plane. It asks for all clusters.
type loadServer struct {
	lrsv3.UnimplementedLoadReportingServiceServer

	mu         sync.Mutex
	nodes      []string
	successful map[string]uint64 // successful requests by cluster
}

// StreamLoadStats implements the service.
func (l *loadServer) StreamLoadStats(stream lrsv3.LoadReportingService_StreamLoadStatsServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.nodes = append(l.nodes, first.GetNode().GetId())
	l.mu.Unlock()
	// The C++ core reports at most once a second.
	if err := stream.Send(&lrsv3.LoadStatsResponse{SendAllClusters: true, LoadReportingInterval: durationpb.New(time.Second)}); err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the relay ends the stream
		}
		l.mu.Lock()
		for _, st := range r.GetClusterStats() {
			for _, locality := range st.GetUpstreamLocalityStats() {
				l.successful[st.GetClusterName()] += locality.GetTotalSuccessfulRequests()
			}
		}
		l.mu.Unlock()
	}
}

// TestLoadOfEveryGRPCIsSummed checks that gRPC's clients in Go and C++ report their load through the relay,
// and that the control plane receives exactly the sum of their RPCs, on one stream.
func TestLoadOfEveryGRPCIsSummed(t *testing.T) {
	required(t, "the C++ core", preparePython)
	cp, _ := startLinear(t).(*goControlPlane)
	loads := &loadServer{successful: map[string]uint64{}}
	s := grpc.NewServer()
	cp.register(s)
	lrsv3.RegisterLoadReportingServiceServer(s, loads)
	backend := startBackend(t, "the one")
	cluster := edsCluster("shop-cluster")
	cluster.LrsServer = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}}}
	cp.turn(world{
		resource.ListenerType: {"shop": apiListener(t, "shop", "routes")},
		resource.RouteType:    {"routes": routesTo("routes", "shop-cluster")},
		resource.ClusterType:  {"shop-cluster": cluster},
		resource.EndpointType: map[string]types.Resource{"shop-cluster": endpointsAt("shop-cluster", backend)},
	})
	r := startRelay(t, serve(t, s).String())
	visits := uint64(0)
	for _, dial := range []func(testing.TB, string, string) shopper{dialGo, dialPython} {
		client := dial(t, bootstrap(t, r.address), cp.target())
		eventually(t, "an RPC succeeds", func() error { _, err := client.visit(); return err })
		visits++
		const more = 20
		for range more {
			if _, err := client.visit(); err != nil {
				t.Fatal(err)
			}
			visits++
		}
	}
	eventually(t, "the control plane has the load", func() error {
		loads.mu.Lock()
		defer loads.mu.Unlock()
		if len(loads.successful) != 1 || loads.successful["shop-cluster"] != visits {
			return fmt.Errorf("the control plane received %v, want %d", loads.successful, visits)
		}
		return nil
	})
	loads.mu.Lock()
	defer loads.mu.Unlock()
	if len(loads.nodes) != 1 || loads.nodes[0] != nodeID {
		t.Errorf("the control plane had streams with the Node ids %q, want one stream with %q", loads.nodes, nodeID)
	}
}
