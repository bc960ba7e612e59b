package integration

// Incidents with gRPC's own xDS client, which rejects what Envoy accepts.

import (
	"fmt"
	"slices"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// envoysListener is a gRPC client's listener with an HTTP filter that gRPC does not have, so that it
// rejects it. gRFC A39.
func envoysListener(t testing.TB, name, routes string) *listenerv3.Listener {
	t.Helper()
	l := apiListener(t, name, routes)
	var manager hcmv3.HttpConnectionManager
	if err := l.GetApiListener().GetApiListener().UnmarshalTo(&manager); err != nil {
		t.Fatal(err)
	}
	manager.HttpFilters = slices.Insert(manager.HttpFilters, 0, &hcmv3.HttpFilter{
		Name:       "only-envoy",
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: toAny(t, wrapperspb.String("of no filter"))},
	})
	l.ApiListener.ApiListener = toAny(t, &manager)
	return l
}

// filterUnknown is in gRPC's words for that.
const filterUnknown = "no filter implementation found"

// startShopPlane starts a control plane that has all that leads to a backend.
func startShopPlane(t testing.TB, f form, b *backend) *controlPlane {
	t.Helper()
	cp := startControlPlane(t, f)
	cp.set(apiListener(t, "shop", "routes"), routeConfiguration("routes", routeTo("cluster", prefix(""))),
		edsCluster("cluster", "endpoints"), endpointsAt(t, "endpoints", b.address))
	return cp
}

// TestIncidentOnlyGRPCRejectsAListener: Envoy accepts a listener that gRPC rejects. Connected directly, every
// gRPC client is sent it, and one that is started then cannot send RPCs. Behind the relay one of them is
// sent it, and one that is started then works.
func TestIncidentOnlyGRPCRejectsAListener(t *testing.T) {
	t.Parallel()
	const clients = 3
	shop := startBackend(t, "shop")
	open := func(t *testing.T, address string, n int) *channel {
		return dialXDS(t, bootstrapFor(&relay{address: address}, fmt.Sprint("grpc-", n)), "xds:///shop")
	}
	t.Run("directly", func(t *testing.T) {
		t.Parallel()
		cp := startShopPlane(t, sotw, shop)
		for n := range clients {
			open(t, cp.address, n).awaitReaches(someMethod, shop)
		}
		cp.set(envoysListener(t, "shop", "routes"))
		cp.await(t, "it is rejected", nacked(filterUnknown))
		if id, err := open(t, cp.address, clients).call(someMethod); err == nil {
			t.Errorf("an RPC of a client that was started then reached %s", id)
		}
	})
	t.Run("through the relay", func(t *testing.T) {
		t.Parallel()
		cp := startShopPlane(t, sotw, shop)
		r := startRelay(t, rolledOut(cp.address, "sotw", "soak: 1h"))
		var envoys []*client
		for n := range clients {
			c := newClient(t, r, sotw, &corev3.Node{Id: fmt.Sprint("envoy-", n), UserAgentName: "envoy"})
			c.subscribe(listenerType, "shop")
			c.awaitHas(t, "the listener", apiListener(t, "shop", "routes"))
			envoys = append(envoys, c)
			open(t, r.address, n).awaitReaches(someMethod, shop)
		}
		cp.set(envoysListener(t, "shop", "routes"))
		cp.await(t, "it is rejected in the words of the client", nacked(filterUnknown))
		open(t, r.address, clients).awaitReaches(someMethod, shop)
		for _, c := range envoys {
			c.awaitHas(t, "the listener as it was", apiListener(t, "shop", "routes"))
		}
		if n := r.metric(t, "xds_relay_downstream_nacks_total"); n != 1 {
			t.Errorf("%v responses were rejected, want that to one client", n)
		}
	})
}

// loopingPlane is a control plane with go-control-plane's snapshots, as many are. In SotW it answers a NACK
// with what was rejected.
type loopingPlane struct {
	*controlPlane
	snapshots cachev3.SnapshotCache
	versions  int
}

func startLoopingPlane(t testing.TB) *loopingPlane {
	t.Helper()
	snapshots := cachev3.NewSnapshotCache(true, everybody{}, nil)
	return &loopingPlane{controlPlane: serveControlPlane(t, snapshots, sotw), snapshots: snapshots}
}

// publish replaces the control plane's resources of these types.
func (p *loopingPlane) publish(t testing.TB, resources ...proto.Message) {
	t.Helper()
	byType := map[string][]types.Resource{}
	for _, r := range resources {
		byType[typeOf(r)] = append(byType[typeOf(r)], r)
	}
	p.versions++
	snapshot, err := cachev3.NewSnapshot(fmt.Sprint(p.versions), byType)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.snapshots.SetSnapshot(t.Context(), "", snapshot); err != nil {
		t.Fatal(err)
	}
}

// requests is how many requests the control plane has been sent but for the first of each type.
func (p *loopingPlane) requests() int {
	return look(p.recorder, func(s *seen) int { return s.acks + len(s.nacks) })
}

// loop is as many NACKs as make a loop.
const loop = 1000

// TestIncidentANACKLoop: after a NACK, a control plane sends the same response again at once. Connected
// directly, a gRPC client rejects it each time. Behind the relay the client rejects it once, and the
// control plane receives no NACK.
func TestIncidentANACKLoop(t *testing.T) {
	t.Parallel()
	shop := startBackend(t, "shop")
	good := []proto.Message{apiListener(t, "shop", "routes"), routeConfiguration("routes", routeTo("cluster", prefix(""))),
		edsCluster("cluster", "endpoints"), endpointsAt(t, "endpoints", shop.address)}
	bad := append([]proto.Message{envoysListener(t, "shop", "routes")}, good[1:]...)
	alone, behind := startLoopingPlane(t), startLoopingPlane(t)
	alone.publish(t, good...)
	behind.publish(t, good...)
	r := startRelay(t, relayTo(behind.address, "sotw"))
	direct := dialXDS(t, bootstrapFor(&relay{address: alone.address}, "direct"), "xds:///shop")
	relayed := dialXDS(t, bootstrapFor(r, "relayed"), "xds:///shop")
	direct.awaitReaches(someMethod, shop)
	relayed.awaitReaches(someMethod, shop)

	const nacksOfClients = "xds_relay_downstream_nacks_total"
	began, before := time.Now(), behind.requests()
	behind.publish(t, bad...)
	r.awaitMetric(t, nacksOfClients, func(n float64) bool { return n > 0 })
	// The time of the loop is long enough for one behind the relay.
	alone.publish(t, bad...)
	alone.await(t, "the client that is connected directly rejects it again and again", func(s *seen) bool { return len(s.nacks) >= loop })
	took, requests := time.Since(began), behind.requests()-before
	alone.publish(t, good...) // which ends it

	nacks := r.metric(t, nacksOfClients)
	t.Logf("in %v the control plane was sent %d requests (%.0f/s) by a client, and %d by the relay", took.Round(time.Millisecond), loop, loop/took.Seconds(), requests)
	// An ACK of each response, and perhaps a request or two for what the listener leads to.
	if most := 10; requests > most {
		t.Errorf("the control plane was sent %d requests by the relay, want %d at most", requests, most)
	}
	if n := look(behind.recorder, func(s *seen) int { return len(s.nacks) }); n > 0 || nacks != 1 {
		t.Errorf("the control plane was sent %d NACKs, and the relay %v, want none and one", n, nacks)
	}
	relayed.awaitReaches(someMethod, shop)
}

// TestIncidentANACKLoopOfWhatNobodyCanRead: the relay itself rejects a resource, and the control plane sends it
// once more, at once. A client that does not wait sends a thousand NACKs meanwhile.
func TestIncidentANACKLoopOfWhatNobodyCanRead(t *testing.T) {
	t.Parallel()
	alone, behind := startLoopingPlane(t), startLoopingPlane(t)
	good, bad := withContent(0, 3, "1"), append(withContent(1, 3, "2"), unreadableCluster("c0"))
	alone.publish(t, good...)
	behind.publish(t, good...)
	r := startRelay(t, relayTo(behind.address, "sotw"))
	relayed := bothForms(t, at(r.address), "relayed", proxyTemper{})
	direct := startProxies(t, 1, sotw, at(alone.address), "direct", proxyTemper{rejects: "2"})
	awaitEach(t, append(relayed, direct...), "has everything", holding(3))

	began := time.Now()
	behind.publish(t, bad...)
	behind.await(t, "the relay rejects it, again after 10 ms, and then more slowly", func(s *seen) bool { return len(s.nacks) > 4 })
	alone.publish(t, withContent(0, 3, "2")...)
	alone.await(t, "the client that is connected directly rejects it again and again", func(s *seen) bool { return len(s.nacks) >= loop })
	took, nacks := time.Since(began), look(behind.recorder, func(s *seen) int { return len(s.nacks) })
	alone.publish(t, good...)
	t.Logf("in %v the control plane was sent %d NACKs (%.0f/s) by a client, and %d by the relay", took.Round(time.Millisecond), loop, loop/took.Seconds(), nacks)
	// After 1, 10, 20, ..., 640 ms, and then each second.
	if most := 9 + int(took/time.Second); nacks > most {
		t.Errorf("the control plane was sent %d NACKs by the relay in %v, want %d at most", nacks, took, most)
	}
	awaitEach(t, relayed, "has what is good of the response", func(s *proxyState) bool { return s.holds["c0"] == "1" && s.holds["c1"] == "2" })
	behind.publish(t, withContent(0, 3, "3")...)
	awaitEach(t, relayed, "has the next version", func(s *proxyState) bool { return s.holds["c0"] == "3" })
	mustHaveLost(t, relayed, 0)
}

// unreadableCluster is a cluster in which an Any that everybody reads cannot be.
func unreadableCluster(name string) proto.Message {
	return &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.clusters.aggregate", TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig", Value: []byte{0xff}},
	}}}
}
