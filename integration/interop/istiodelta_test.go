package interop

// A case that works with Istio in SotW, but not in delta.

import (
	"context"
	"encoding/json"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"
	"istio.io/istio/pilot/pkg/model"
	"istio.io/istio/pkg/config/host"
	"istio.io/istio/pkg/config/schema/gvk"
)

// TestIstioSendsChangesOfAllClustersInSotWAlone checks the reason why `protocol: auto` speaks SotW with Istio
// for gRPC clients. In delta, when such a client subscribes to another listener or cluster, Istio forgets the
// earlier ones, and no longer sends their changes. gRPC clients themselves do not speak delta, so the bug
// affects only a relay that translates. When this test fails for delta, Istio has fixed the bug, and the
// exception can be removed.
func TestIstioSendsChangesOfAllClustersInSotWAlone(t *testing.T) {
	for _, tt := range []struct {
		form  form
		sends bool
	}{{sotw, true}, {delta, false}} {
		t.Run(string(tt.form), func(t *testing.T) {
			t.Parallel()
			p := startPlane(t, kind{form: tt.form, start: startIstio})
			i := p.controlPlane.(*istio)
			r := startRelay(t, p.address)
			one, two := clusterOf("one"), clusterOf("two")

			s := openClusters(t, r)
			s.subscribe(one)
			s.await(one, clusterv3.Cluster_ROUND_ROBIN)
			s.subscribe(one, two)
			s.await(two, clusterv3.Cluster_ROUND_ROBIN)

			i.balance("one")
			i.balance("two")
			s.await(two, clusterv3.Cluster_LEAST_REQUEST) // Istio has processed both changes
			if sent := s.has[one] == clusterv3.Cluster_LEAST_REQUEST; sent != tt.sends {
				t.Errorf("Istio sends a change of the cluster with the earlier subscription: %v, want %v", sent, tt.sends)
			}
		})
	}
}

func clusterOf(service string) string {
	return model.BuildSubsetKey(model.TrafficDirectionOutbound, "", host.Name(hostname(service)), servicePort)
}

// balance sets the load balancing policy LEAST_REQUEST for a service.
func (i *istio) balance(service string) {
	i.set(gvk.DestinationRule, service, &networking.DestinationRule{
		Host: hostname(service),
		TrafficPolicy: &networking.TrafficPolicy{LoadBalancer: &networking.LoadBalancerSettings{
			LbPolicy: &networking.LoadBalancerSettings_Simple{Simple: networking.LoadBalancerSettings_LEAST_REQUEST},
		}},
	})
}

// clusterStream is a SotW client that requests clusters.
type clusterStream struct {
	t      testing.TB
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	names  []string
	node   *corev3.Node
	last   *discoveryv3.DiscoveryResponse
	has    map[string]clusterv3.Cluster_LbPolicy // the newest policy of each cluster
}

func openClusters(t testing.TB, r *relay) *clusterStream {
	t.Helper()
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(node)
	if err != nil {
		t.Fatal(err)
	}
	n := &corev3.Node{}
	if err := protojson.Unmarshal(text, n); err != nil {
		t.Fatal(err)
	}
	return &clusterStream{t: t, stream: stream, node: n, has: map[string]clusterv3.Cluster_LbPolicy{}}
}

// subscribe replaces the requested clusters.
func (s *clusterStream) subscribe(names ...string) {
	s.t.Helper()
	s.names = names
	s.request()
}

// request requests the clusters, and ACKs the last response.
func (s *clusterStream) request() {
	s.t.Helper()
	err := s.stream.Send(&discoveryv3.DiscoveryRequest{
		Node:          s.node,
		TypeUrl:       resource.ClusterType,
		ResourceNames: s.names,
		VersionInfo:   s.last.GetVersionInfo(),
		ResponseNonce: s.last.GetNonce(),
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// await receives responses until a cluster has a policy.
func (s *clusterStream) await(name string, policy clusterv3.Cluster_LbPolicy) {
	s.t.Helper()
	for has, ok := s.has[name]; !ok || has != policy; has, ok = s.has[name] {
		response, err := s.stream.Recv()
		if err != nil {
			s.t.Fatalf("waited in vain for %s with %v (%v); the client has %v", name, policy, err, s.has)
		}
		for _, any := range response.GetResources() {
			var c clusterv3.Cluster
			if err := any.UnmarshalTo(&c); err != nil {
				s.t.Fatal(err)
			}
			s.has[c.GetName()] = c.GetLbPolicy()
		}
		s.last = response
		s.request()
	}
}
