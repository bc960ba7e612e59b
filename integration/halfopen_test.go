package integration

import (
	"fmt"
	"testing"
)

// TestHalfOpenConnectionIsFoundByTheNextRequest checks that, if a balancer silently drops a connection, the
// relay finds out within the time of a probe at its next request, instead of the minutes of a keepalive.
func TestHalfOpenConnectionIsFoundByTheNextRequest(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			cp := startControlPlane(t, upstream)
			cp.set(plainEndpoints("held", 1), plainEndpoints("new", 1))
			between := startBalancer(t, cp.address)
			r := startRelay(t, prelude+fmt.Sprintf(`
authorities:
  - name: cp.example.com
    servers:
      - address: %s
        protocol: %s
        probe: {after: 200ms, timeout: 500ms}
        backoff: {base: 20ms, max: 200ms}
old_style_names:
  - authority: cp.example.com
`, between.address, upstream))
			c := newClient(t, r, delta, node("client", ""))
			c.subscribe(endpointType, "held")
			c.awaitHas(t, "the endpoints", plainEndpoints("held", 1))

			between.swallow()
			cp.set(plainEndpoints("held", 2)) // the change does not reach the relay
			c.subscribe(endpointType, "new")
			c.awaitHas(t, "the new and the changed endpoints, over a new connection", plainEndpoints("new", 1), plainEndpoints("held", 2))
			r.awaitLog(t, `msg="control plane lost" .*(half-open connection)`)
			c.mustLive(t)
		})
	}
}

// TestHalfOpenConnectionOfAPollIsReplaced is the same for a polled control plane that answers at once if
// nothing is new, so that no request waits.
func TestHalfOpenConnectionOfAPollIsReplaced(t *testing.T) {
	t.Parallel()
	cp := startPolled(t)
	cp.set(t, "1", plainCluster("front", "1"))
	between := startBalancer(t, cp.address)
	r := startRelay(t, prelude+fmt.Sprintf(`
authorities:
  - name: cp.example.com
    servers:
      - address: %s
        protocol: rest
        poll_interval: 100ms
        probe: {after: 300ms, timeout: 300ms}
old_style_names:
  - authority: cp.example.com
`, between.address))
	c := newClient(t, r, delta, node("client", ""))
	c.subscribe(clusterType, wildcard)
	c.awaitHas(t, "the cluster", plainCluster("front", "1"))
	cp.answered.await(t, "the relay has received the answer that nothing is new", func(n *map[int]int) bool { return (*n)[304] > 1 })
	between.swallow()
	cp.set(t, "2", plainCluster("front", "2"))
	c.awaitHas(t, "the change", plainCluster("front", "2"))
}
