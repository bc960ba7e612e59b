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

// envoysListener returns a listener for gRPC clients with an HTTP filter that gRPC does not have. gRPC
// rejects the listener. gRFC A39.
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

// filterUnknown is a part of the error message with which gRPC rejects envoysListener.
const filterUnknown = "no filter implementation found"

// startShopPlane starts a control plane with all resources of xds:///shop, which lead to a backend.
func startShopPlane(t testing.TB, f form, b *backend) *controlPlane {
	t.Helper()
	cp := startControlPlane(t, f)
	cp.set(apiListener(t, "shop", "routes"), routeConfiguration("routes", routeTo("cluster", prefix(""))),
		edsCluster("cluster", "endpoints"), endpointsAt(t, "endpoints", b.address))
	return cp
}

// TestIncidentOnlyGRPCRejectsAListener tests a listener that Envoy accepts and gRPC rejects. A gRPC client
// that starts after the change and is connected directly cannot send RPCs. Behind the relay, only one gRPC
// client receives the change, and a client that starts after it works.
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
		cp.await(t, "a client rejects the listener", nacked(filterUnknown))
		if id, err := open(t, cp.address, clients).call(someMethod); err == nil {
			t.Errorf("an RPC of a client that started after the change reached %s", id)
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
		cp.await(t, "the control plane receives the client's error message", nacked(filterUnknown))
		open(t, r.address, clients).awaitReaches(someMethod, shop)
		for _, c := range envoys {
			c.awaitHas(t, "the old listener", apiListener(t, "shop", "routes"))
		}
		if n := r.metric(t, "xds_relay_downstream_nacks_total"); n != 1 {
			t.Errorf("clients rejected %v responses, want 1", n)
		}
	})
}

// loopingPlane is a control plane with go-control-plane's snapshots, as many control planes are. In SotW it
// answers a NACK with the same response.
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

// publish replaces all resources of the control plane.
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

// requests returns how many ACKs and NACKs the control plane has received.
func (p *loopingPlane) requests() int {
	return look(p.recorder, func(s *seen) int { return s.acks + len(s.nacks) })
}

// loop is the number of NACKs after which the tests speak of a loop.
const loop = 1000

// TestIncidentANACKLoop tests a control plane that sends the same response again after each NACK. A gRPC
// client that is connected directly rejects it each time. Behind the relay, the client rejects it once, and
// the control plane receives one NACK.
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
	// In the time that the loop takes, the client behind the relay could loop, too.
	alone.publish(t, bad...)
	alone.await(t, "the client that is connected directly rejects the response again and again", func(s *seen) bool { return len(s.nacks) >= loop })
	took, requests := time.Since(began), behind.requests()-before
	alone.publish(t, good...) // this ends the loop

	nacks := r.metric(t, nacksOfClients)
	t.Logf("in %v a control plane received %d requests (%.0f/s) from a client, and the other one %d from the relay", took.Round(time.Millisecond), loop, loop/took.Seconds(), requests)
	// The relay sends an ACK of each response, one NACK, and perhaps a request or two for the resources that the
	// listener names.
	if most := 10; requests > most {
		t.Errorf("the control plane received %d requests from the relay, want at most %d", requests, most)
	}
	behind.await(t, "the control plane receives a NACK", func(s *seen) bool { return len(s.nacks) > 0 })
	if n := look(behind.recorder, func(s *seen) int { return len(s.nacks) }); n != 1 || nacks != 1 {
		t.Errorf("the control plane received %d NACKs, and the relay %v, want 1 and 1", n, nacks)
	}
	relayed.awaitReaches(someMethod, shop)
}

// TestIncidentANACKLoopOfWhatNobodyCanRead tests a resource that the relay itself rejects, at a control plane
// that sends it again after each NACK. The relay waits longer before each NACK. Meanwhile, a client that does
// not wait sends a thousand NACKs.
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
	behind.await(t, "the relay has rejected the response five times", func(s *seen) bool { return len(s.nacks) > 4 })
	alone.publish(t, withContent(0, 3, "2")...)
	alone.await(t, "the client that is connected directly rejects the response again and again", func(s *seen) bool { return len(s.nacks) >= loop })
	took, nacks := time.Since(began), look(behind.recorder, func(s *seen) int { return len(s.nacks) })
	alone.publish(t, good...)
	t.Logf("in %v a control plane received %d NACKs (%.0f/s) from a client, and the other one %d from the relay", took.Round(time.Millisecond), loop, loop/took.Seconds(), nacks)
	// The relay waits 1, 10, 20, ..., 640 ms before its NACKs, and then a second before each.
	if most := 9 + int(took/time.Second); nacks > most {
		t.Errorf("the control plane received %d NACKs from the relay in %v, want at most %d", nacks, took, most)
	}
	awaitEach(t, relayed, "has the good resources of the response", func(s *proxyState) bool { return s.holds["c0"] == "1" && s.holds["c1"] == "2" })
	behind.publish(t, withContent(0, 3, "3")...)
	awaitEach(t, relayed, "has the next version", func(s *proxyState) bool { return s.holds["c0"] == "3" })
	mustHaveLost(t, relayed, 0)
}

// unreadableCluster returns a cluster with an Any that cannot be decoded and that every client has to decode.
func unreadableCluster(name string) proto.Message {
	return &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.clusters.aggregate", TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig", Value: []byte{0xff}},
	}}}
}
