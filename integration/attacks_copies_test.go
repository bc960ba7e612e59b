package integration

// Names that a client makes up, and that all lead to one large resource.

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

const (
	copiedNames = 5000
	copiedBytes = 200_000
	// mostCopied is how much the live heap may grow. Copies of the resource would take 1 GB.
	mostCopied = 100 << 20
)

// TestNamesOfOneResourceShareItsBytes checks that 5,000 made-up names, all with the same alternative, hold its bytes
// once, before and after it has changed. Meanwhile another client sees each of its updates in time.
func TestNamesOfOneResourceShareItsBytes(t *testing.T) {
	if raceDetector() {
		t.Skip("the race detector changes the heap")
	}
	t.Parallel()
	const (
		begins = "envoy.config.endpoint.v3.ClusterLoadAssignment/"
		shared = "xdstp://cp.example.com/" + begins + "shared"
	)
	cp := startControlPlane(t, delta)
	large := func(version uint32) *endpointv3.ClusterLoadAssignment {
		m := plainEndpoints(shared, version)
		m.Endpoints[0].Locality.SubZone = strings.Repeat("z", copiedBytes)
		return m
	}
	cp.set(large(1))
	config := prelude + servedBy(cp.address, "delta") + `
  - name: down.example.com
    failover: {policy: unreachable, grace: 1ms}
    servers: [{address: "127.0.0.1:1"}]
old_style_names:
  - authority: cp.example.com
`
	at := &target{relay: startRelay(t, config), metrics: metricsClient(t)}
	at.grpc = at.relay.address
	watch := startCanary(t, cp, at.relay, startRelay(t, config))
	names := make([]string, copiedNames)
	for i := range names {
		names[i] = fmt.Sprintf("xdstp://down.example.com/%s%d#alt=%s", begins, i, shared)
	}
	witness := newClient(t, at.relay, delta, node("witness", ""))
	some := append(names[:5:5], names[copiedNames-5:]...)
	witness.subscribe(endpointType, some...)
	seen := func(version uint32) {
		for _, name := range some {
			witness.awaitPort(t, name, version)
		}
	}
	seen(1)
	watch.updates(t, 10)
	before := at.settledLive(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// It reads nothing.
	at.send(ctx, t, at.dial(ctx, t), &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names})
	grown := func(what string) {
		t.Helper()
		took, alone := watch.updates(t, 20).percentiles()
		t.Logf("%s: the live heap has grown by %d MiB, the canary's updates took %v, and %v at another relay", what, (at.settledLive(t)-before)>>20, took, alone)
		if live := at.settledLive(t); live > before+mostCopied {
			t.Errorf("%s: the live heap is %d MiB, and was %d MiB", what, live>>20, before>>20)
		}
		if most := 2*alone + mostSlower; took > most {
			t.Errorf("%s: the canary's updates took %v, want at most %v", what, took, most)
		}
	}
	grown("with the names")
	for version := range uint32(5) {
		cp.set(large(version + 2))
		began := time.Now()
		seen(version + 2)
		t.Logf("version %d after %v", version+2, time.Since(began).Round(time.Millisecond))
	}
	grown("after five changes")
}
