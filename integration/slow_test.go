package integration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// TestClientThatDoesNotReadDelaysNoOtherAndCostsNoMemory checks that the relay queues no changes for a client
// that does not read. When the client reads again, it receives the newest state.
func TestClientThatDoesNotReadDelaysNoOtherAndCostsNoMemory(t *testing.T) {
	t.Parallel()
	const (
		names   = 16
		size    = 16 << 10 // bytes of a resource; a client's flow-control window holds four
		round   = 500
		allowed = 80 << 20 // growth of the relay's memory, in bytes
	)
	updates := inShort(10_000, 5_000) // 160 MiB in total, and 16 times that in full states
	padding := strings.Repeat("x", size)
	cluster := func(i, version int) *clusterv3.Cluster {
		return plainCluster(fmt.Sprintf("cluster-%02d", i), fmt.Sprintf("%d %s", version, padding))
	}
	h := startHandmade(t)
	r := startRelay(t, relayTo(h.address, "delta"))

	open := func(f form, id string) *client {
		c := openClient(t, connect(t, r.address), f, node(id, ""))
		c.subscribe(clusterType, wildcard)
		return c
	}
	var readers, sleepers []*client
	for _, f := range []form{delta, sotw} {
		sleepers = append(sleepers, open(f, "sleeps in "+string(f)))
		reader := open(f, "reads in "+string(f))
		go reader.takeAll()
		readers = append(readers, reader)
	}

	s := h.stream(t)
	s.awaitAsked(t, clusterType, wildcard)
	var state []*discoveryv3.Resource
	for i := range names {
		state = append(state, versioned(t, "0", cluster(i, 0)))
	}
	if nack := s.respond(t, clusterType, "0", state...); nack != "" {
		t.Fatalf("the relay rejected the resources: %s", nack)
	}
	newest := make([]int, names) // the version of each cluster
	awaitNewest := func(c *client) {
		t.Helper()
		for i, version := range newest {
			c.awaitHas(t, fmt.Sprintf("version %d of cluster %d", version, i), cluster(i, version))
		}
	}
	for _, c := range readers {
		awaitNewest(c)
	}
	before := memory(t, r)
	for version := 1; version <= updates; version++ {
		i := version % names
		newest[i] = version
		nonce := strconv.Itoa(version)
		s.send(t, clusterType, nonce, versioned(t, nonce, cluster(i, version)))
		if version%round != 0 {
			continue
		}
		// Clients that read are never far behind.
		for _, c := range readers {
			awaitNewest(c)
		}
		if now := memory(t, r); now > before+allowed {
			t.Fatalf("after %d updates the relay has grown from %d to %d MiB, want at most %d MiB of growth", version, before>>20, now>>20, allowed>>20)
		}
	}
	t.Logf("%d updates of %d KiB: the relay has grown from %d to %d MiB", updates, size>>10, before>>20, memory(t, r)>>20)

	// A client that reads again receives the responses in flight, and then the newest state.
	for _, c := range sleepers {
		go c.takeAll()
		awaitNewest(c)
		c.mustLive(t)
		c.read(func(v *view) {
			if most := 4 * names; len(v.log) > most {
				t.Errorf("the %s client received %d resources after its pause, want at most %d", c.form, len(v.log), most)
			}
			t.Logf("the %s client received %d resources in %d responses after its pause", c.form, len(v.log), v.responses)
		})
	}
	if nacks := s.nacks(); len(nacks) > 0 {
		t.Errorf("the relay rejected %d updates: %s", len(nacks), nacks[0])
	}
}

// memory returns the relay's resident memory in bytes.
func memory(t testing.TB, r *relay) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		t.Skipf("this system does not show the memory of a process: %v", err)
	}
	_, rest, _ := strings.Cut(string(status), "\nVmRSS:")
	line, _, _ := strings.Cut(rest, " kB")
	kib, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("%v in %s", err, status)
	}
	return kib << 10
}
