package integration

// Callers of CSDS that do not read their answers.

import (
	"fmt"
	"strings"
	"testing"
	"time"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// TestSlowCallersOfCSDSDelayNobodyForLong checks that identities that do not read their answers, each on many streams and
// calls, do not keep another one from its own answer: with one of them the answer comes at once, with three of them it
// comes when one has kept its place for ten seconds. Meanwhile a client sees all its updates in time.
func TestSlowCallersOfCSDSDelayNobodyForLong(t *testing.T) {
	t.Parallel()
	const (
		large, streams = 20_000, 10
		atOnce         = 5 * time.Second
	)
	cp := startControlPlane(t, delta)
	var clusters []proto.Message
	for i := range 100 {
		c := plainCluster(fmt.Sprint("cluster-", i), "1")
		c.AltStatName = strings.Repeat("x", large)
		clusters = append(clusters, c)
	}
	cp.set(clusters...)
	i := newIdentified(t)
	plain := relayTo(cp.address, "delta")
	config := strings.Replace(i.listens(plain), "  - address: 127.0.0.1:0\n", "  - address: 127.0.0.1:0\n    csds: true\n", 1)
	r := startRelay(t, config)
	watch := &canary{plane: cp, client: newClientOn(t, i.connect(canaryName, r), delta, node(canaryName, "")), control: newClient(t, startRelay(t, plain), delta, node(canaryName, ""))}
	for _, c := range []*client{watch.client, watch.control} {
		c.subscribe(endpointType, canaryName)
		c.subscribe(clusterType, wildcard)
		c.awaitHas(t, "the clusters", clusters...)
	}
	watch.updates(t, 10)
	ask := func(within time.Duration) {
		t.Helper()
		began := time.Now()
		resp, err := statusv3.NewClientStatusDiscoveryServiceClient(i.connect("good", r)).FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{})
		took := time.Since(began)
		if err != nil || len(resp.GetConfig()) == 0 {
			t.Errorf("the answer after %v: %v, %v", took, len(resp.GetConfig()), err)
		}
		if took > within {
			t.Errorf("the answer takes %v, want %v at most", took, within)
		}
		t.Logf("an answer after %v", took.Round(time.Millisecond))
	}
	attack := func(who string) {
		t.Helper()
		conn := i.connect(who, r, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(16<<20))
		has := newClientOn(t, conn, delta, node(who, "")) // what its answers contain
		has.subscribe(clusterType, wildcard)
		has.awaitHas(t, "the clusters", clusters...)
		open := func() {
			s, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).StreamClientStatus(t.Context())
			if err == nil {
				err = s.Send(&statusv3.ClientStatusRequest{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for range streams {
			open()
		}
		eventually(t, "the places of the identity are taken", func() error {
			if _, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{}); status.Code(err) != codes.ResourceExhausted {
				open() // the call had the place of a stream, which was refused
				return fmt.Errorf("a call gets %v", status.Code(err))
			}
			return nil
		})
	}
	attack("bad-1")
	ask(atOnce)
	attack("bad-2")
	attack("bad-3")
	ask(csdsPatience + atOnce)
	seen := watch.updates(t, 20)
	if attacked, alone := seen.percentiles(); attacked > 2*alone+mostSlower && !raceDetector() {
		t.Errorf("the canary's updates took %v, and %v at another relay", attacked, alone)
	}
}

// csdsPatience is how long a caller waits for the place of one that does not read.
const csdsPatience = 10 * time.Second
