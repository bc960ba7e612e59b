package integration

// A client that takes the memory of a small container.

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	containerBytes = 256 << 20

	hoarders     = 20
	hoardedNames = 100_000
	hoardedFor   = 20 * time.Second
)

// TestNamesDoNotUseUpTheMemory checks that a relay in a small container survives a client with 20 streams that subscribe
// to 100,000 made-up names of 80 bytes each, again and again. Meanwhile another client, from the same address, sees all
// updates in time, and a new one is served.
func TestNamesDoNotUseUpTheMemory(t *testing.T) {
	if raceDetector() {
		t.Skip("the race detector takes memory")
	}
	t.Parallel()
	var refused, ended atomic.Int32
	var newcomers int
	attackContainer(t, hoardedFor, func(ctx context.Context, at *target, attacking *sync.WaitGroup) {
		for i := range hoarders {
			attacking.Go(func() {
				for round := 0; ctx.Err() == nil; round++ {
					hoard(ctx, t, at, fmt.Sprintf("%d-%d-", i, round), &refused, &ended)
				}
			})
		}
		attacking.Go(func() {
			pace := time.NewTicker(canaryPace)
			defer pace.Stop()
			for ; ctx.Err() == nil; newcomers++ {
				c := newClient(t, at.relay, delta, node(fmt.Sprint("newcomer-", newcomers), ""))
				c.subscribe(endpointType, canaryName)
				c.await(t, "a new client has the resource", func(v *view) bool { return len(v.held) > 0 || v.ended != nil })
				c.mustLive(t)
				c.leave()
				<-pace.C
			}
		})
	})
	t.Logf("%d new clients; %d streams were refused names, %d ended", newcomers, refused.Load(), ended.Load())
	if refused.Load()+ended.Load() == 0 {
		t.Error("nothing was refused: the attack does not reach the limit")
	}
}

// attackContainer starts a relay in a small container and an attack on it, which ends with ctx. It checks that the relay
// does not take more memory than the container has, and that another client, from the same address, sees all updates in
// time. The attackers are clients of a control plane that does not answer, if their Nodes have the cluster "quiet".
func attackContainer(t *testing.T, lasts time.Duration, attack func(ctx context.Context, at *target, attacking *sync.WaitGroup)) {
	t.Helper()
	cp := startControlPlane(t, delta)
	cp.stop()
	cp.loads = newLoadServer(time.Second)
	cp.loads.forgets = true
	cp.start()
	cp.set(largeEndpoints(1))
	config := strings.Replace(prelude, "admin:", "  - {address: '127.0.0.1:0', protocol: rest}\nadmin:", 1) + servedBy(cp.address, "delta") + `
  - name: quiet.example.com
    servers: [{address: "` + startQuietPlane(t) + `", protocol: delta}]
  - name: down.example.com
    failover: {policy: unreachable, grace: 1ms}
    servers: [{address: "127.0.0.1:1"}]
old_style_names:
  - {when: node.cluster == "quiet", authority: quiet.example.com}
  - authority: cp.example.com
`
	at := &target{relay: startContained(t, config, containerBytes), plane: cp, metrics: metricsClient(t)}
	at.grpc, at.rest = at.relay.address, at.relay.awaitLog(t, `msg="serving clients" address=(\S+) protocol=rest`)
	watch := startCanary(t, cp, at.relay, startRelay(t, config))
	watch.updates(t, 10)
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var attacking sync.WaitGroup
	attack(ctx, at, &attacking)
	peak := 0
	attacking.Go(func() {
		pace := time.NewTicker(canaryPace / 5)
		defer pace.Stop()
		for ; ctx.Err() == nil; <-pace.C {
			peak = max(peak, anonymousMemory(at.relay.cmd.Process.Pid))
		}
	})
	seen := watch.watch(ctx, t)
	attacking.Wait()
	took, alone := seen.percentiles()
	t.Logf("%d updates in %v, and in %v at another relay; at most %d MiB", len(seen), took, alone, peak>>20)
	if peak > containerBytes {
		t.Errorf("the relay has taken %d MiB, and its container has %d MiB", peak>>20, containerBytes>>20)
	}
	if most := 5*alone + 10*mostSlower; took > most {
		t.Errorf("the canary's updates took %v, and %v at another relay: want at most %v", took, alone, most)
	}
}

// hoard subscribes to very many names on a stream until the stream ends.
func hoard(ctx context.Context, t *testing.T, at *target, prefix string, refused, ended *atomic.Int32) {
	const (
		length = 80
		parts  = 5
	)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn := at.dial(ctx, t)
	var reqs []*discoveryv3.DeltaDiscoveryRequest
	for part := range parts {
		names := make([]string, hoardedNames/parts)
		for i := range names {
			names[i] = fmt.Sprintf("%s%d-%d-", prefix, part, i)
			names[i] += strings.Repeat("n", length-len(names[i]))
		}
		reqs = append(reqs, ask(clusterType, names...))
	}
	reqs[0].Node = &corev3.Node{Id: prefix, Cluster: "quiet"}
	s := at.send(ctx, t, conn, reqs...)
	if s == nil {
		return
	}
	for was := false; ; {
		m, err := s.Recv()
		switch {
		case err != nil && ctx.Err() == nil:
			// Unavailable: admission.memory, or its connection had the most of a request that never got complete.
			if code := status.Code(err); code != codes.ResourceExhausted && code != codes.Unavailable {
				t.Errorf("the stream ends with %v", err)
			}
			ended.Add(1)
			return
		case err != nil:
			return
		case len(m.GetResourceErrors()) > 0 && !was:
			refused.Add(1)
			was = true
		}
	}
}

// anonymousMemory returns the resident memory of a process without files, in bytes; 0 if that is not known.
func anonymousMemory(pid int) int { return statusBytes(pid, "RssAnon") }
