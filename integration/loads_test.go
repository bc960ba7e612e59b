package integration

// Load reports, from clients to control planes.

import (
	"fmt"
	"slices"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// reportingCluster returns a cluster that tells clients to report their load to the server that it came from.
func reportingCluster(name, endpoints string) *clusterv3.Cluster {
	c := edsCluster(name, endpoints)
	c.LrsServer = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}}}
	return c
}

// zoned returns endpoints with a backend in each zone, with the weights of the zones.
func zoned(t testing.TB, name string, weights map[string]uint32, backends map[string]*backend) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	all := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	for zone, weight := range weights {
		of := endpointsAt(t, name, backends[zone].address).GetEndpoints()[0]
		of.Locality, of.LoadBalancingWeight = &corev3.Locality{Zone: zone}, wrapperspb.UInt32(weight)
		all.Endpoints = append(all.Endpoints, of)
	}
	return all
}

// TestLoadOfGRPCClientsReachesTheControlPlane checks that gRPC's clients report their load to the relay, as
// their clusters tell them, and that the relay reports the sums on one stream. They are exactly the RPCs that
// the backends have answered, including those during an outage of the control plane.
func TestLoadOfGRPCClientsReachesTheControlPlane(t *testing.T) {
	t.Parallel()
	backends := map[string]*backend{"east": startBackend(t, "east"), "west": startBackend(t, "west")}
	cp := startControlPlane(t, delta)
	cp.stop()
	cp.loads = newLoadServer(100 * time.Millisecond)
	cp.start()
	cp.set(apiListener(t, "shop", "shop-routes"), routeConfiguration("shop-routes", routeTo("shop-cluster", prefix(""))),
		reportingCluster("shop-cluster", "shop-endpoints"), zoned(t, "shop-endpoints", map[string]uint32{"east": 3, "west": 1}, backends))
	r := startRelay(t, relayTo(cp.address, "delta"))
	channels := []*channel{dialXDS(t, bootstrapFor(r, "edge-1"), "xds:///shop"), dialXDS(t, bootstrapFor(r, "edge-2"), "xds:///shop")}
	visit := func() {
		t.Helper()
		for _, c := range channels {
			eventually(t, "an RPC succeeds", func() error { _, err := c.call(someMethod); return err })
			const more = 40
			for range more {
				if _, err := c.call(someMethod); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	answered := func() map[string]uint64 {
		sums := map[string]uint64{}
		for zone, b := range backends {
			for _, kind := range []string{"ok", "issued"} {
				sums["shop-cluster "+zone+" "+kind] = uint64(b.calls.Load())
			}
		}
		return sums
	}
	visit()
	cp.loads.awaitSums(t, answered())
	cp.loads.read(func(s *loadSeen) {
		if ids := nodeIDs(s.streams); len(ids) != 1 || ids[0] != "edge-1" && ids[0] != "edge-2" {
			t.Errorf("the control plane had streams with the Nodes %v, want one stream with the Node of a client", ids)
		}
		if features := s.streams[0].GetClientFeatures(); !slices.Contains(features, "envoy.lrs.supports_send_all_clusters") {
			t.Errorf("the relay announces %v, want envoy.lrs.supports_send_all_clusters among them", features)
		}
	})
	cp.stop()
	visit()
	cp.start()
	visit()
	cp.loads.awaitSums(t, answered())
	if east, west := backends["east"].calls.Load(), backends["west"].calls.Load(); east <= west || west == 0 {
		t.Errorf("%d RPCs went to the zone with the weight 3, and %d to the zone with the weight 1", east, west)
	}
}

func nodeIDs(nodes []*corev3.Node) (ids []string) {
	for _, n := range nodes {
		ids = append(ids, n.GetId())
	}
	return ids
}

// TestEachControlPlaneGetsTheLoadThatItAsksFor checks that the relay asks a client of two authorities for the
// clusters of both, at the shorter interval, and that each control plane receives its own clusters at its own
// interval. A relay behind the relay is a client like any other.
func TestEachControlPlaneGetsTheLoadThatItAsksFor(t *testing.T) {
	t.Parallel()
	const cart, till, shop = "xdstp://a.example.com/envoy.config.cluster.v3.Cluster/cart", "xdstp://a.example.com/envoy.config.cluster.v3.Cluster/till", "xdstp://b.example.com/envoy.config.cluster.v3.Cluster/shop"
	plane := func(every time.Duration, clusters ...string) *controlPlane {
		cp := startControlPlane(t, delta)
		cp.stop()
		cp.loads = newLoadServer(every, clusters...)
		cp.start()
		return cp
	}
	const often, seldom = 50 * time.Millisecond, 200 * time.Millisecond
	a, b := plane(often, cart), plane(seldom, shop)
	config := func(a, b string) string {
		return prelude + fmt.Sprintf(`
authorities:
  - name: a.example.com
    servers: [{address: %q, backoff: {base: 20ms, max: 200ms}}]
  - name: b.example.com
    servers: [{address: %q, backoff: {base: 20ms, max: 200ms}}]
`, a, b)
	}
	first := startRelay(t, config(a.address, b.address))
	second := startRelay(t, config(first.address, first.address))

	direct, behind := reportLoad(t, first.address, "direct"), reportLoad(t, second.address, "behind")
	direct.awaitAsked(often, cart, shop)
	behind.awaitAsked(often, cart, shop)
	for range 5 {
		direct.report(cart, "z", 1, 2)
		direct.report(shop, "z", 10, 0)
		direct.report(till, "z", 1000, 0) // no control plane asks for this cluster
		behind.report(cart, "z", 100, 0)
		behind.report(shop, "z", 0, 0)
		direct.report(cart, "z", 1, 3)
	}
	behind.report(shop, "z", 1, 4)
	a.loads.awaitSums(t, map[string]uint64{cart + " z ok": 510})
	b.loads.awaitSums(t, map[string]uint64{shop + " z ok": 51})

	// The relay keeps the load of a client that has disconnected, even while the control plane is away.
	b.stop()
	direct.report(shop, "z", 7, 5)
	direct.close()
	eventually(t, "the relay has the report", func() error {
		if got := first.metric(t, "xds_relay_load_reports_clients"); got != 2 { // the two streams of the other relay
			return fmt.Errorf("%v clients report load", got)
		}
		return nil
	})
	b.start()
	b.loads.awaitSums(t, map[string]uint64{shop + " z ok": 58})
	b.loads.read(func(s *loadSeen) {
		for _, period := range s.periods[1:] { // the first period is the clients' own, a second
			if period < seldom {
				t.Errorf("a report covers %v, want at least the interval %v", period, seldom)
			}
		}
	})
}

// TestLoadReportsAreRefusedWhereNobodyTakesThem checks that a relay with `load_reports: off` does not have
// the service. If only the control plane does not have it, the relay keeps the clients' streams open.
func TestLoadReportsAreRefusedWhereNobodyTakesThem(t *testing.T) {
	t.Parallel()
	cp := startControlPlane(t, delta)
	off := startRelay(t, prelude+servedBy(cp.address, "delta")+`
    load_reports: off
old_style_names:
  - authority: cp.example.com
`)
	if _, err := reportLoad(t, off.address, "edge").Recv(); status.Code(err) != codes.Unimplemented {
		t.Errorf("with load_reports: off, a client received %v, want UNIMPLEMENTED", err)
	}
	on := startRelay(t, relayTo(cp.address, "delta"))
	c := reportLoad(t, on.address, "edge")
	on.awaitLog(t, `msg="(the control plane takes no load reports \(LRS\))"`)
	c.report("shop", "z", 1, 0)
	eventually(t, "the relay reads the report", func() error {
		if n := on.metric(t, "xds_relay_load_reports_received_total"); n != 1 {
			return fmt.Errorf("the relay has received %v reports", n)
		}
		return nil
	})
}
