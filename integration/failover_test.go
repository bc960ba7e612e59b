package integration

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
)

// failoverTo returns a configuration of one authority with these servers, in the order of their priority.
func failoverTo(upstream form, failover string, planes ...*killable) string {
	var b strings.Builder
	b.WriteString(prelude + "\nauthorities:\n  - name: cp.example.com\n    failover: " + failover + "\n    servers:\n")
	for _, p := range planes {
		fmt.Fprintf(&b, "      - {address: %s, protocol: %s, backoff: {base: 50ms, max: 200ms}}\n", p.address, upstream)
	}
	b.WriteString("old_style_names:\n  - authority: cp.example.com\n")
	return b.String()
}

// TestSecondServerTakesOverAndGivesBack checks that the relay switches to the second server when the first
// one is killed, and returns as soon as the first one answers again. Clients see nothing but the differences
// between the servers' resources.
func TestSecondServerTakesOverAndGivesBack(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("upstream %s, shared versions %t", upstream, shared), func(t *testing.T) {
				t.Parallel()
				first, second := newKillable(t), newKillable(t)
				ofFirst := []proto.Message{plainCluster("both", "1"), plainCluster("only-first", "1"), plainEndpoints("at-both", 1)}
				ofSecond := []proto.Message{plainCluster("both", "2"), plainCluster("only-second", "2"), plainEndpoints("at-both", 2), plainEndpoints("at-late", 2)}
				older := []proto.Message{plainCluster("both", "0"), plainEndpoints("at-both", 0), plainEndpoints("at-late", 0)}
				first.start(ofFirst...)
				second.start(ofSecond...)
				r := startRelay(t, failoverTo(upstream, fmt.Sprintf("{hysteresis: 1ms, shared_versions: %t}", shared), first, second))
				var clients []*client
				for _, f := range []form{delta, sotw} {
					c := newClient(t, r, f, node(string(f), ""))
					c.subscribe(clusterType, wildcard)
					c.subscribe(endpointType, "at-both")
					c.awaitHas(t, "the first server's resources", ofFirst...)
					clients = append(clients, c)
				}

				first.kill()
				killed := time.Now()
				// By default, the relay switches only when a client requests a resource that it does not
				// hold.
				late := newClient(t, r, delta, node("late", ""))
				late.subscribe(endpointType, "at-late")
				late.await(t, "the late client receives the endpoints that only the second server has", func(v *view) bool {
					return len(v.held) > 0 || v.ended != nil
				})
				t.Logf("from the death of the first server to the first resource of the second one at a client: %v", time.Since(killed).Round(time.Millisecond))
				for _, c := range clients {
					c.awaitHas(t, "the second server's resources", ofSecond[:3]...)
					c.await(t, "the client drops the cluster that the second server lacks", func(v *view) bool {
						return slices.Equal(v.names(clusterType), []string{"both", "only-second"})
					})
				}
				r.awaitLog(t, `msg="switched to another control plane".* server=(`+second.address+`)`)
				r.mustShow(t, "/metrics", `xds_relay_upstream_switches_total{grpc_xds_authority="cp.example.com"} 1`)
				r.mustShow(t, "/authorities", second.address)

				first.start(older...)
				back := time.Now()
				for _, c := range clients {
					c.awaitHas(t, "the first server's new resources", older[:2]...)
					if c == clients[0] {
						t.Logf("from the start of the first server to its resources at a client: %v", time.Since(back).Round(time.Millisecond))
					}
					c.await(t, "the client drops the cluster that the first server lacks", func(v *view) bool {
						return slices.Equal(v.names(clusterType), []string{"both"})
					})
				}
				late.awaitHas(t, "the first server's new resources", older[2])
				for _, c := range append(clients, late) {
					c.mustLive(t)
					c.read(func(v *view) {
						if received := v.received(clusterType, 0); slices.Contains(received, "-both") {
							t.Errorf("a client received the removal of a cluster that both servers have: %v", received)
						}
						if len(v.errors) > 0 {
							t.Errorf("a client received errors: %v", v.errors)
						}
					})
				}
			})
		}
	}
}

// TestClientsSeeNoErrorBeforeAllServersHaveFailed checks that clients receive an error only after the last
// server has failed, that it names all servers, and that it ends when any of them answers.
func TestClientsSeeNoErrorBeforeAllServersHaveFailed(t *testing.T) {
	first, second := newKillable(t), newKillable(t)
	config := strings.Replace(failoverTo(delta, "{}", first, second), "- address: 127.0.0.1:0\n", "- address: 127.0.0.1:0\n    when_unreachable: wait\n", 1)
	r := startRelay(t, config)
	c := newClient(t, r, delta, node("one", ""))
	c.subscribe(endpointType, "at-both")
	c.await(t, "the client receives an error that names both servers", func(v *view) bool {
		received := v.errors[topic{endpointType, "at-both"}]
		return strings.Contains(received, first.address) && strings.Contains(received, second.address)
	})
	r.mustShow(t, "/metrics", `xds_relay_upstream_unreachable{grpc_xds_authority="cp.example.com"} 1`)
	second.start(plainEndpoints("at-both", 2))
	c.awaitHas(t, "the second server's endpoints", plainEndpoints("at-both", 2))
	c.read(func(v *view) {
		if received := v.log; len(received) != 1 {
			t.Errorf("the client received %v, want one resource", received)
		}
	})
}

// TestRPCsFlowWhileServersAreKilled checks that RPCs of gRPC's client succeed while the relay switches
// servers, and follow the resources of the active server.
func TestRPCsFlowWhileServersAreKilled(t *testing.T) {
	first, second := newKillable(t), newKillable(t)
	show := func(b *backend) []proto.Message {
		return []proto.Message{
			apiListener(t, "shop", "shop-routes"),
			routeConfiguration("shop-routes", routeTo("shop-cluster", prefix(""))),
			edsCluster("shop-cluster", "shop-endpoints"),
			endpointsAt(t, "shop-endpoints", b.address),
		}
	}
	one, other := startBackend(t, "first"), startBackend(t, "second")
	first.start(show(one)...)
	second.start(show(other)...)
	r := startRelay(t, failoverTo(auto, "{policy: unreachable, grace: 1ms, hysteresis: 1ms}", first, second))
	channel := dialXDS(t, bootstrapFor(r, "edge-1"), "xds:///shop")
	channel.awaitReaches(someMethod, one)
	// follow waits until RPCs reach want. No RPC may fail before that.
	follow := func(what string, want *backend) {
		t.Helper()
		since := time.Now()
		for {
			id, err := channel.call(someMethod)
			switch {
			case err != nil:
				t.Fatalf("%s: an RPC failed: %v", what, err)
			case id == want.id:
				t.Logf("%s: RPCs reach %s after %v", what, id, time.Since(since).Round(time.Millisecond))
				return
			case time.Since(since) > patience:
				t.Fatalf("%s: RPCs do not reach %s", what, want.id)
			}
		}
	}
	first.kill()
	follow("the first server is killed", other)
	first.start(show(one)...)
	follow("the first server is back", one)
	second.kill()
	channel.awaitReaches(someMethod, one)
}

// TestServersOfOneListMaySpeakDifferentForms checks that a polled server can replace one that is not
// polled.
func TestServersOfOneListMaySpeakDifferentForms(t *testing.T) {
	polled := newKillable(t)
	polled.start(plainCluster("both", "2"), plainEndpoints("at-both", 2))
	// Another relay serves the second server's resources over REST.
	rest := startRelay(t, strings.Replace(relayTo(polled.address, "delta"), "listeners:\n  - address: 127.0.0.1:0", "listeners:\n  - address: 127.0.0.1:0\n    protocol: rest", 1))
	first := newKillable(t)
	first.start(plainCluster("both", "1"))
	r := startRelay(t, prelude+fmt.Sprintf(`
authorities:
  - name: cp.example.com
    failover: {policy: unreachable, grace: 1ms, hysteresis: 1ms}
    servers:
      - {address: %q, backoff: {base: 50ms, max: 200ms}}
      - {address: %q, protocol: rest, poll_interval: 100ms, backoff: {base: 50ms, max: 200ms}}
old_style_names:
  - authority: cp.example.com
`, first.address, rest.address))
	c := newClient(t, r, delta, node("one", ""))
	c.subscribe(clusterType, wildcard)
	c.awaitHas(t, "the first server's cluster", plainCluster("both", "1"))
	first.kill()
	c.awaitHas(t, "the polled server's cluster", plainCluster("both", "2"))
	c.subscribe(endpointType, "at-both")
	c.awaitHas(t, "the polled server's endpoints", plainEndpoints("at-both", 2))
	first.start(plainCluster("both", "3"), plainEndpoints("at-both", 3))
	c.awaitHas(t, "the first server's new resources", plainCluster("both", "3"), plainEndpoints("at-both", 3))
	c.mustLive(t)
}

// mustShow waits until a page of the admin listener has a text. The page may show an event just after its
// effects.
func (r *relay) mustShow(t testing.TB, path, want string) {
	t.Helper()
	eventually(t, path+" shows "+want, func() error {
		resp, err := http.Get("http://" + r.admin + path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		defer http.DefaultClient.CloseIdleConnections()
		body, err := io.ReadAll(resp.Body)
		if err == nil && !strings.Contains(string(body), want) {
			err = fmt.Errorf("the page is\n%s", body)
		}
		return err
	})
}
