package integration

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// TestTheNextServerGetsTheLoad checks that the relay sends the load that clients report while the active
// server is away to the next server, and that it sends the remaining load before it ends.
func TestTheNextServerGetsTheLoad(t *testing.T) {
	t.Parallel()
	const cart = "xdstp://a.example.com/envoy.config.cluster.v3.Cluster/cart"
	plane := func(every time.Duration) *controlPlane {
		cp := startControlPlane(t, delta)
		cp.stop()
		cp.loads = newLoadServer(every, cart)
		cp.start()
		return cp
	}
	first, second := plane(50*time.Millisecond), plane(time.Hour)
	r := startRelay(t, prelude+fmt.Sprintf(`
authorities:
  - name: a.example.com
    servers:
      - {address: %q, backoff: {base: 20ms, max: 200ms}}
      - {address: %q, backoff: {base: 20ms, max: 200ms}}
`, first.address, second.address))
	c := reportLoad(t, r.address, "edge")
	c.awaitAsked(50*time.Millisecond, cart)
	c.report(cart, "z", 1, 0)
	first.loads.awaitSums(t, map[string]uint64{cart + " z ok": 1})
	first.stop()
	c.awaitAsked(time.Hour, cart) // the second server's interval
	c.report(cart, "z", 10, 0)
	eventually(t, "the relay has the report", func() error {
		if n := r.metric(t, "xds_relay_load_reports_received_total"); n != 2 {
			return fmt.Errorf("the relay has received %v reports", n)
		}
		return nil
	})
	r.end(t, syscall.SIGTERM)
	second.loads.awaitSums(t, map[string]uint64{cart + " z ok": 10})
}
