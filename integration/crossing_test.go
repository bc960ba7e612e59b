package integration

import (
	"fmt"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
)

// crossings runs test for each form of control plane with each form of client.
func crossings(t *testing.T, test func(t *testing.T, upstream, downstream form)) {
	t.Helper()
	for _, upstream := range []form{delta, sotw} {
		for _, downstream := range []form{delta, sotw} {
			t.Run(fmt.Sprintf("%s client of %s upstream", downstream, upstream), func(t *testing.T) {
				t.Parallel()
				test(t, upstream, downstream)
			})
		}
	}
}

// TestWildcardsCrossFromEachFormToEachForm checks that a wildcard client of either form has all resources,
// and follows additions, changes and removals, whichever form the control plane speaks.
func TestWildcardsCrossFromEachFormToEachForm(t *testing.T) {
	crossings(t, func(t *testing.T, upstream, downstream form) {
		cp := startControlPlane(t, upstream)
		cp.set(plainCluster("a", "1"), plainCluster("b", "1"), plainListener("a", "1"), plainListener("b", "1"))
		r := startRelay(t, relayTo(cp.address, string(upstream)))
		c := newClient(t, r, downstream, node("client", ""))
		c.subscribe(clusterType)            // the legacy wildcard: no names
		c.subscribe(listenerType, wildcard) // the wildcard *
		want := func(what string, names []string, resources ...proto.Message) {
			t.Helper()
			c.awaitHas(t, what, resources...)
			c.await(t, fmt.Sprintf("the client has %v and no more", names), func(v *view) bool {
				return slices.Equal(v.names(clusterType), names) && slices.Equal(v.names(listenerType), names)
			})
		}
		want("all resources", []string{"a", "b"},
			plainCluster("a", "1"), plainCluster("b", "1"), plainListener("a", "1"), plainListener("b", "1"))
		cp.set(plainCluster("c", "1"), plainListener("c", "1"))
		want("the new resources", []string{"a", "b", "c"}, plainCluster("c", "1"), plainListener("c", "1"))
		cp.set(plainCluster("a", "2"), plainListener("a", "2"))
		want("the changed resources", []string{"a", "b", "c"}, plainCluster("a", "2"), plainListener("a", "2"))
		cp.remove(clusterType, "b")
		cp.remove(listenerType, "b")
		want("the rest after a removal", []string{"a", "c"}, plainCluster("a", "2"), plainCluster("c", "1"))
		cp.remove(clusterType, "a", "c")
		cp.remove(listenerType, "a", "c")
		want("nothing", nil)
		cp.set(plainCluster("b", "2"), plainListener("b", "2"))
		want("the restored resources", []string{"b"}, plainCluster("b", "2"), plainListener("b", "2"))
	})
}

// TestNamesCrossFromEachFormToEachForm checks the same for clients that request names: of a type whose SotW
// responses are full states, and of a type whose responses are not.
func TestNamesCrossFromEachFormToEachForm(t *testing.T) {
	crossings(t, func(t *testing.T, upstream, downstream form) {
		cp := startControlPlane(t, upstream)
		cp.set(plainCluster("a", "1"), plainCluster("b", "1"), plainCluster("c", "1"))
		cp.set(plainEndpoints("a", 1), plainEndpoints("b", 1), plainEndpoints("c", 1))
		r := startRelay(t, relayTo(cp.address, string(upstream)))
		c := newClient(t, r, downstream, node("client", ""))
		c.subscribe(clusterType, "a")
		c.subscribe(endpointType, "a")
		c.awaitHas(t, "the first names", plainCluster("a", "1"), plainEndpoints("a", 1))
		c.subscribe(clusterType, "b")
		c.subscribe(endpointType, "b")
		c.awaitHas(t, "more names", plainCluster("b", "1"), plainEndpoints("b", 1))
		cp.set(plainCluster("b", "2"), plainEndpoints("b", 2))
		c.awaitHas(t, "a change", plainCluster("b", "2"), plainEndpoints("b", 2))

		cp.remove(clusterType, "b")
		c.await(t, "the client learns that its cluster is gone", func(v *view) bool { return v.gone[topic{clusterType, "b"}] })
		if upstream == delta { // in SotW, endpoints cannot be removed
			cp.remove(endpointType, "b")
			c.await(t, "the client learns that its endpoints are gone", func(v *view) bool { return v.gone[topic{endpointType, "b"}] })
		}

		// After it unsubscribes, the client does not receive the resource any more.
		c.unsubscribe(clusterType, "a")
		c.unsubscribe(endpointType, "a")
		c.subscribe(clusterType, "c")
		c.subscribe(endpointType, "c")
		c.awaitHas(t, "the resources of its new name", plainCluster("c", "1"), plainEndpoints("c", 1))
		mark := c.mark()
		cp.set(plainCluster("a", "3"), plainEndpoints("a", 3))
		cp.set(plainCluster("c", "3"), plainEndpoints("c", 3))
		c.awaitHas(t, "its change", plainCluster("c", "3"), plainEndpoints("c", 3))
		c.read(func(v *view) {
			for _, typeURL := range []string{clusterType, endpointType} {
				if received := v.received(typeURL, mark); slices.Contains(received, "a") {
					t.Errorf("the client received %v after it had unsubscribed from a", received)
				}
			}
		})
	})
}

// TestChangedClusterBringsItsEndpointsAgain checks the one exception to the rule that the relay sends only
// changes. Envoy warms a changed cluster until it receives its endpoints, and does not request them again.
// xDS: "Resource warming".
func TestChangedClusterBringsItsEndpointsAgain(t *testing.T) {
	crossings(t, func(t *testing.T, upstream, downstream form) {
		endpoints := []proto.Message{plainEndpoints("front", 1), plainEndpoints("back-service", 2)}
		front, back := edsCluster("front", ""), edsCluster("back", "back-service")
		cp := startControlPlane(t, upstream)
		cp.set(append(endpoints, front, back)...)
		r := startRelay(t, relayTo(cp.address, string(upstream)))
		c := newClient(t, r, downstream, node("envoy", ""))
		c.subscribe(clusterType, wildcard)
		c.awaitHas(t, "the clusters", front, back)
		c.subscribe(endpointType, "front", "back-service")
		c.awaitHas(t, "their endpoints", endpoints...)

		for _, change := range []struct {
			cluster proto.Message
			want    string
		}{
			{aliased(front), "front"},
			{aliased(back), "back-service"},
		} {
			mark := c.mark()
			cp.set(change.cluster)
			c.awaitHas(t, "the changed cluster", change.cluster)
			c.await(t, "the client receives the endpoints again", func(v *view) bool {
				return slices.Contains(v.received(endpointType, mark), change.want)
			})
			c.read(func(v *view) {
				if received := v.received(endpointType, mark); !slices.Equal(received, []string{change.want}) {
					t.Errorf("the client received the endpoints %v again, want only those of the changed cluster, %s", received, change.want)
				}
				if last := v.log[len(v.log)-1]; last.typeURL != endpointType {
					t.Errorf("the endpoints came before the cluster, want the opposite order: %v", v.log[mark:])
				}
			})
		}
	})
}

// aliased returns a changed copy of a cluster.
func aliased(c *clusterv3.Cluster) *clusterv3.Cluster {
	changed := proto.Clone(c).(*clusterv3.Cluster)
	changed.AltStatName = "changed"
	return changed
}
