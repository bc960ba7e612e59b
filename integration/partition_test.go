package integration

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// TestPartitionsHaveTheirOwnResourcesUnderTheSameNames checks that what an
// old-style name means depends on the client's Node, as the configuration says.
func TestPartitionsHaveTheirOwnResourcesUnderTheSameNames(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			cp := startPartitions(t, (*corev3.Node).GetCluster, []string{"red", "blue"}, upstream)
			cp.setIn("red", plainEndpoints("backend", 1), plainCluster("front", "of red"))
			cp.setIn("blue", plainEndpoints("backend", 2), plainCluster("front", "of blue"), plainCluster("extra", "of blue"))
			r := startRelay(t, prelude+servedBy(cp.address, string(upstream))+`
old_style_names:
  - when: node.cluster in ["red", "blue"]
    authority: cp.example.com
    partition: node.cluster
`)
			open := func(f form, id, cluster string) *client {
				c := newClient(t, r, f, node(id, cluster))
				c.subscribe(endpointType, "backend")
				c.subscribe(clusterType, wildcard)
				return c
			}
			red := []*client{open(delta, "red-1", "red")}
			blue := []*client{open(sotw, "blue-1", "blue")}
			cp.await(t, "both partitions have sent requests", func(s *seen) bool { return len(s.wanted(endpointType)) == 2 })
			red = append(red, open(sotw, "red-2", "red"))
			blue = append(blue, open(delta, "blue-2", "blue"))
			for _, c := range red {
				c.awaitHas(t, "what is red's", plainEndpoints("backend", 1), plainCluster("front", "of red"))
			}
			for _, c := range blue {
				c.awaitHas(t, "what is blue's", plainEndpoints("backend", 2), plainCluster("front", "of blue"), plainCluster("extra", "of blue"))
			}
			cp.read(func(s *seen) {
				requested := map[string]string{}
				for _, stream := range s.streams {
					requested[stream.node.GetCluster()] += stream.node.GetId()
				}
				if len(requested) != 2 || requested["red"] != "red-1" || requested["blue"] != "blue-1" || s.opened != 2 {
					t.Errorf("want one stream for each partition, as its first client; there is %s", s)
				}
			})

			// A change in one partition is none in the other.
			marks := []int{red[0].mark(), red[1].mark()}
			cp.setIn("blue", plainEndpoints("backend", 3))
			for _, c := range blue {
				c.awaitHas(t, "blue's change", plainEndpoints("backend", 3))
			}
			cp.setIn("red", plainEndpoints("backend", 4))
			for i, c := range red {
				c.awaitHas(t, "red's change", plainEndpoints("backend", 4))
				c.read(func(v *view) {
					if received := v.received(endpointType, marks[i]); len(received) != 1 {
						t.Errorf("red's %s client was sent %v, want only its own change", c.form, received)
					}
					if v.held[topic{clusterType, "extra"}].value != "" {
						t.Errorf("red's %s client has blue's cluster", c.form)
					}
				})
			}

			// A client that no rule matches gets an error, but not NOT_FOUND, because the
			// resource may exist.
			other := newClient(t, r, delta, node("green-1", "green"))
			other.subscribe(endpointType, "backend")
			other.await(t, "the client without a partition is sent why it gets nothing", func(v *view) bool {
				return v.errors[topic{endpointType, "backend"}] != ""
			})
			other.read(func(v *view) {
				if v.gone[topic{endpointType, "backend"}] || len(v.held) > 0 {
					t.Errorf("want an error alone; there is %s", v)
				}
			})
		})
	}
}
