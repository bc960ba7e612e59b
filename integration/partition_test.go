package integration

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// TestPartitionsHaveTheirOwnResourcesUnderTheSameNames checks that the client's Node decides which resource
// an old-style name means, as the configuration says.
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
				c.awaitHas(t, "red's resources", plainEndpoints("backend", 1), plainCluster("front", "of red"))
			}
			for _, c := range blue {
				c.awaitHas(t, "blue's resources", plainEndpoints("backend", 2), plainCluster("front", "of blue"), plainCluster("extra", "of blue"))
			}
			cp.read(func(s *seen) {
				requested := map[string]string{}
				for _, stream := range s.streams {
					requested[stream.node.GetCluster()] += stream.node.GetId()
				}
				if len(requested) != 2 || requested["red"] != "red-1" || requested["blue"] != "blue-1" || s.opened != 2 {
					t.Errorf("want one stream for each partition, with the Node of its first client; the control plane has seen %s", s)
				}
			})

			// A change in one partition does not reach clients of the other.
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
						t.Errorf("red's %s client received %v, want only red's change", c.form, received)
					}
					if v.held[topic{clusterType, "extra"}].value != "" {
						t.Errorf("red's %s client holds blue's cluster", c.form)
					}
				})
			}

			// A client that no rule matches receives an error. The error is not NOT_FOUND, because the
			// resource may exist.
			other := newClient(t, r, delta, node("green-1", "green"))
			other.subscribe(endpointType, "backend")
			other.await(t, "the client without a partition receives an error", func(v *view) bool {
				return v.errors[topic{endpointType, "backend"}] != ""
			})
			other.read(func(v *view) {
				if v.gone[topic{endpointType, "backend"}] || len(v.held) > 0 {
					t.Errorf("want only an error; the client has %s", v)
				}
			})
		})
	}
}
