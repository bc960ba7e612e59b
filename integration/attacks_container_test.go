package integration

// A relay in a small container, which is attacked in several ways at once.

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

var containerTime = flag.Duration("container", 20*time.Second, "how long the attacks of TestARelaySurvivesInASmallContainer last")

// TestARelaySurvivesInASmallContainer checks that a relay in a small container survives clients that make up names, names
// that all lead to one large resource, and clusters whose load they report, while herds of others connect at once; and
// that another client, from the same address, sees all updates in time.
func TestARelaySurvivesInASmallContainer(t *testing.T) {
	if raceDetector() {
		t.Skip("the race detector takes memory")
	}
	long(t, "it takes half a minute; each attack has a shorter test of its own")
	t.Parallel()
	var refused, ended, served, rounds atomic.Int32
	attackContainer(t, *containerTime, func(ctx context.Context, at *target, attacking *sync.WaitGroup) {
		// An attack ends now and then, so that there is memory for what comes next.
		repeat := func(lasts, pauses time.Duration, attack func(ctx context.Context, round int)) {
			attacking.Go(func() {
				for round := 0; ctx.Err() == nil; round++ {
					within, cancel := context.WithTimeout(ctx, lasts)
					attack(within, round)
					cancel()
					rounds.Add(1)
					rest := time.NewTimer(pauses)
					select {
					case <-rest.C:
					case <-ctx.Done():
					}
					rest.Stop()
				}
			})
		}
		for i := range hoarders {
			attacking.Go(func() {
				for ; ctx.Err() == nil; rounds.Add(1) {
					hoard(ctx, t, at, fmt.Sprintf("%d-%d-", i, rounds.Load()), &refused, &ended)
				}
			})
		}
		repeat(15*time.Second, time.Second, func(ctx context.Context, round int) { shareLarge(ctx, t, at, round) })
		attacking.Go(func() {
			pace := time.NewTicker(3 * time.Second)
			defer pace.Stop()
			for version := uint32(2); ctx.Err() == nil; version++ {
				at.plane.set(largeEndpoints(1 + version%1000))
				<-pace.C
			}
		})
		for range 4 {
			repeat(6*time.Second, time.Second, func(ctx context.Context, _ int) { madeUpLoad(ctx, t, at) })
		}
		repeat(5*time.Second, 5*time.Second, func(ctx context.Context, _ int) { beHerd(ctx, t, at, &served) })
	})
	t.Logf("%d rounds of attacks; %d streams were refused names, %d ended; %d clients of herds were served", rounds.Load(), refused.Load(), ended.Load(), served.Load())
	if refused.Load()+ended.Load() == 0 || served.Load() == 0 {
		t.Error("nothing was refused, or no client of a herd served")
	}
}

// largeName is the only large resource of the control plane in attackContainer.
const largeName = "xdstp://cp.example.com/envoy.config.endpoint.v3.ClusterLoadAssignment/large"

func largeEndpoints(version uint32) *endpointv3.ClusterLoadAssignment {
	m := plainEndpoints(largeName, version)
	m.Endpoints[0].Locality.SubZone = strings.Repeat("z", copiedBytes)
	return m
}

// shareLarge requests made-up names that all have the large resource as their alternative, and reads no answer.
func shareLarge(ctx context.Context, t *testing.T, at *target, round int) {
	names := make([]string, copiedNames)
	for i := range names {
		names[i] = fmt.Sprintf("xdstp://down.example.com/envoy.config.endpoint.v3.ClusterLoadAssignment/%d-%d#alt=%s", round, i, largeName)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	at.send(ctx, t, at.dial(ctx, t), ask(endpointType, names...))
	<-ctx.Done()
}

// beHerd has many clients connect at once, which request a resource, and leave.
func beHerd(ctx context.Context, t *testing.T, at *target, served *atomic.Int32) {
	const conns, streams = 50, 6
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var herd sync.WaitGroup
	for i := range conns {
		conn := at.dial(ctx, t)
		for j := range streams {
			herd.Go(func() {
				req := ask(endpointType, canaryName)
				req.Node = &corev3.Node{Id: fmt.Sprintf("herd-%d-%d", i, j)}
				s := at.send(ctx, t, conn, req)
				if s == nil {
					return
				}
				if r, err := s.Recv(); err == nil && len(r.GetResources()) > 0 {
					served.Add(1)
					_ = s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: r.GetNonce()})
				}
			})
		}
	}
	herd.Wait()
}

// startContained starts a relay in a container of that size: in a cgroup if the machine allows that, and otherwise with
// the memory limit that it would set in one.
func startContained(t *testing.T, config string, bytes int) *relay {
	t.Helper()
	procs := memoryCgroup(t, bytes)
	if procs == "" {
		t.Log("there is no cgroup of memory to write to: the relay has a memory limit of Go")
		return startRelayWith(t, config, fmt.Sprintf("GOMEMLIMIT=%d", bytes/10*9))
	}
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	r := runCommand(t, exec.Command("sh", "-c", `echo $$ > "$0" && exec "$@"`, procs, binary, "serve", "--config", file))
	r.config = file
	r.awaitLog(t, `msg="memory limit" limit=(\S+) from=cgroup`)
	return r
}

// memoryCgroup makes a cgroup with that limit, until the test ends, and returns the file to which a process writes its id
// to join it. It returns "" if the machine does not allow that.
func memoryCgroup(t *testing.T, bytes int) (procs string) {
	own, _ := os.ReadFile("/proc/self/cgroup")
	for _, v := range []struct{ line, root, limit string }{
		{`(?m)^\d+:memory:(/.*)$`, "/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		{`(?m)^0::(/.*)$`, "/sys/fs/cgroup", "memory.max"},
	} {
		within := regexp.MustCompile(v.line).FindSubmatch(own)
		if within == nil {
			continue
		}
		dir, err := os.MkdirTemp(filepath.Join(v.root, string(within[1])), "xds-relay-test-") //nolint:usetesting // a cgroup is no ordinary folder
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		if os.WriteFile(filepath.Join(dir, v.limit), fmt.Append(nil, bytes), 0o600) == nil {
			return filepath.Join(dir, "cgroup.procs")
		}
	}
	return ""
}
