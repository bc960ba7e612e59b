package relay

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/internal/testplane"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// manyPlane is a control plane whose wildcard has many Clusters, in responses of up to 3 MB, and which reads
// initial_resource_versions.
type manyPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	resources []*discoveryv3.Resource
	sent      atomic.Int64 // resources
}

// startManyPlane starts a control plane with n Clusters of a KB.
func startManyPlane(t testing.TB, n int) (p *manyPlane, address string) {
	t.Helper()
	p = &manyPlane{}
	for i := range n {
		name := fmt.Sprintf("c%06d", i)
		c := &clusterv3.Cluster{Name: name, AltStatName: strings.Repeat("x", 1<<10-40)}
		a, err := anypb.New(c)
		if err != nil {
			t.Fatal(err)
		}
		p.resources = append(p.resources, &discoveryv3.Resource{Name: name, Version: "1", Resource: a})
	}
	return p, testplane.Listen(t, p)
}

// DeltaAggregatedResources implements the aggregated service.
func (p *manyPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	const each = 3000
	answered := false
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if answered {
			continue
		}
		answered = true
		held := req.GetInitialResourceVersions()
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "1"}
		for _, resource := range p.resources {
			if held[resource.GetName()] == resource.GetVersion() {
				continue
			}
			if r.Resources = append(r.Resources, resource); len(r.GetResources()) == each {
				if err := stream.Send(r); err != nil {
					return err
				}
				r.Resources = nil
			}
			p.sent.Add(1)
		}
		if err := stream.Send(r); err != nil {
			return err
		}
	}
}

// undecoded is a codec that leaves responses as they are: a client that decodes 100 MB would be measured, too.
type undecoded struct{ encoding.CodecV2 }

func (c undecoded) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// many reads the resources of a wildcard.
type many struct {
	grpc.ClientStream
	has      int
	complete bool // the relay has said so
}

// openMany opens the stream of a new client.
func openMany(ctx context.Context, t testing.TB, conn grpc.ClientConnInterface, node *corev3.Node) *many {
	t.Helper()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName)
	if err == nil {
		err = stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: clusterTypeURL})
	}
	if err != nil {
		t.Fatal(err)
	}
	return &many{ClientStream: stream}
}

// read reads a response.
func (m *many) read(t testing.TB) {
	t.Helper()
	var response []byte
	if err := m.RecvMsg(&response); err != nil {
		t.Fatalf("after %d resources: %v", m.has, err)
	}
	nonce := ""
	for f := wire.Walk(response); f.Next(); {
		switch f.Num {
		case wire.ResponseResources:
			m.has++
		case wire.ResponseNonce:
			nonce = string(f.Bytes)
		case wire.DeltaComplete:
			m.complete = true
		}
	}
	if err := m.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterTypeURL, ResponseNonce: nonce}); err != nil {
		t.Fatal(err)
	}
}

func dialMany(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(
		grpc.ForceCodecV2(undecoded{encoding.GetCodecV2("proto")}), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// awaitMany returns how long a new client waits until it has n resources.
func awaitMany(t testing.TB, address string, node *corev3.Node, n int) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn := dialMany(t, address)
	begun := time.Now()
	for m := openMany(ctx, t, conn, node); m.has < n; {
		m.read(t)
	}
	return time.Since(begun)
}

// awaitComplete waits until a relay knows that it has all of a partition: its control plane does not say so.
func awaitComplete(t testing.TB, door string, zone int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn := fleet.ForState(dialMany(t, door), zoneScope(zone), func() {}, func() {})
	for m := openMany(ctx, t, conn, &corev3.Node{Id: "probe", Cluster: fmt.Sprint(zone)}); !m.complete; {
		m.read(t)
	}
}

// coldFleet are two relays. The first one has the Clusters of all partitions, the second one knows nothing yet.
type coldFleet struct {
	plane     *manyPlane
	relays    []*Relay
	addresses []string
	resources int
}

func startColdFleet(t testing.TB, resources int) *coldFleet {
	t.Helper()
	plane, address := startManyPlane(t, resources)
	f := &coldFleet{plane: plane, resources: resources}
	peers := []string{freeAddress(t), freeAddress(t)}
	start := func(i int) {
		r, at := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0"}]
node: {id: relay-%d}
authorities: [{name: a, servers: [{address: "%s", protocol: delta}]}]
old_style_names: [{authority: a, partition: node.cluster}]
drain: {time: 0s}
fleet: {name: edge, listen: "%s", members: {static: ["%s"]}}`, i, address, peers[i], strings.Join(peers, `", "`)), slog.New(slog.DiscardHandler))
		f.relays, f.addresses = append(f.relays, r), append(f.addresses, at)
	}
	start(0)
	for zone := range coldZones {
		awaitMany(t, f.addresses[0], &corev3.Node{Id: "warm", Cluster: fmt.Sprint(zone)}, resources)
	}
	for zone := range coldZones {
		awaitComplete(t, peers[0], zone)
	}
	start(1)
	await(t, "the relays know each other", func() bool {
		for _, r := range f.relays {
			if s := r.fleetStatus(); len(s.Members) != 2 || !s.Members[0].Reachable || !s.Members[1].Reachable {
				return false
			}
		}
		return true
	})
	return f
}

// coldZones is how many partitions there are.
const coldZones = 4

// warmUp returns how long clients of the second relay wait for all resources, by whether the first relay owns their
// partition.
func (f *coldFleet) warmUp(t testing.TB) (waits map[bool][]time.Duration) {
	t.Helper()
	waits = map[bool][]time.Duration{}
	for zone := range coldZones {
		peer, _ := f.relays[1].fleet.Load().Route(zoneScope(zone))
		wait := awaitMany(t, f.addresses[1], &corev3.Node{Id: "cold", Cluster: fmt.Sprint(zone)}, f.resources)
		waits[peer != nil] = append(waits[peer != nil], wait)
	}
	return waits
}

// TestAColdRelayDoesNotWaitForTheEndOfAnAnswer: the other relay says which response is the last.
func TestAColdRelayDoesNotWaitForTheEndOfAnAnswer(t *testing.T) {
	f := startColdFleet(t, 6000)
	sent := f.plane.sent.Load()
	// Without that, the relay would wait for a second after 6 MB in two responses.
	for _, waits := range f.warmUp(t) {
		if least := slices.Min(waits); least >= time.Second {
			t.Errorf("clients waited %v, want less than a second", waits)
		}
	}
	if again := f.plane.sent.Load() - sent; again > 0 {
		t.Errorf("the control plane has sent %d resources again", again)
	}
}

// BenchmarkColdRelay is the time until a client of a relay that knows nothing yet has 100,000 resources of a KB: from the
// relay that owns the partition, or from the one that had it before.
func BenchmarkColdRelay(b *testing.B) {
	f := startColdFleet(b, 100_000)
	for b.Loop() {
		for owned, waits := range f.warmUp(b) {
			name := "taken-over-s"
			if owned {
				name = "from-owner-s"
			}
			b.ReportMetric(slices.Max(waits).Seconds(), name)
			b.Log(owned, waits)
		}
	}
}
