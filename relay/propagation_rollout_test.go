package relay

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// A change that is rolled out is measured when it is accepted, from the receipt of its response, for the clients that
// did not have it until then. Clients that got it earlier are not measured, and it does not count as a second change.
func TestPropagationOfARolloutIsThatOfItsLastStep(t *testing.T) {
	for _, form := range []string{"delta", "sotw"} {
		for _, names := range [][]string{{"*"}, clustersOfPlane} {
			t.Run(fmt.Sprint(form, names), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { playRollout(t, form, names) })
			})
		}
	}
}

func playRollout(t *testing.T, form string, names []string) {
	const soak, fleet = 2 * time.Minute, 9
	plane := newCountingPlane()
	plane.up()
	defer plane.down()
	s := startInMemory(t, `
listeners: [{address: "127.0.0.1:18000"}]
authorities:
  - name: plane
    servers: [{address: "plane:18000", protocol: delta}]
    rollout: {first: 1, steps: [50%], soak: 2m}
old_style_names: [{authority: plane}]
`, func(string) dialer { return plane.dial })
	defer s.close()
	s.relay.changes.Measure(true)
	conn, _ := s.dial(t)
	defer conn.Close()
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var clients []*watchingClient
	for i := range fleet {
		c := &watchingClient{
			works: time.Duration(i) * 37 * time.Millisecond, node: &corev3.Node{Id: fmt.Sprint("node-", i)},
			received: map[int]time.Time{}, acked: map[int]time.Time{},
		}
		clients = append(clients, c)
		running.Go(func() { _ = c.run(ctx, ads, form, names) })
	}
	synctest.Wait()
	plane.changes <- 0 // the first answer is accepted at once
	time.Sleep(5 * time.Second)
	received := time.Now()
	plane.changes <- 1
	time.Sleep(2*soak - time.Second)
	synctest.Wait()
	if _, counts := measuredTimes(t, s.relay, true); len(counts) > 0 {
		t.Errorf("a change that is not accepted is measured: %v", counts)
	}
	time.Sleep(time.Minute)
	synctest.Wait()

	sums, counts := measuredTimes(t, s.relay, true)
	before := 0
	for stage, times := range map[string]func(*watchingClient) map[int]time.Time{
		"sent":  func(c *watchingClient) map[int]time.Time { return c.received },
		"acked": func(c *watchingClient) map[int]time.Time { return c.acked },
	} {
		var after []float64 // of those that got it with its acceptance
		for _, c := range clients {
			if d := times(c)[1].Sub(received); d >= 2*soak {
				after = append(after, d.Seconds())
			}
		}
		slices.Sort(after)
		before = fleet - len(after)
		for client, i := range map[string]int{"first": 0, "median": (len(after)+1)/2 - 1, "last": len(after) - 1} {
			key := stage + " " + client
			if counts[key] != 1 || math.Abs(sums[key]-after[i]) > 1e-6 {
				t.Errorf("%s: %v changes took %v s, want 1 that took %v s", key, counts[key], sums[key], after[i])
			}
		}
	}
	if before < 1 || before == fleet {
		t.Errorf("%d of %d clients had the change before it was accepted", before, fleet)
	}
	for key, n := range second(measuredTimes(t, s.relay, false)) {
		if n != 1 { // the first answer
			t.Errorf("%s: %v changes are measured as if there were no rollout, want 1", key, n)
		}
	}
}

func second[A, B any](_ A, b B) B { return b }
