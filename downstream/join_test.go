package downstream

import (
	"strings"
	"testing"
	"time"
	"unsafe"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
)

// Invariant: what N clients receive shares the same bytes. New subscribers of a large glob share it in few buffers.
// When a member changes, most of the buffers stay the same.
func TestNewcomersShareWhatTheyAreSent(t *testing.T) {
	const members, limit = 10_000, 1 << 20
	c := cache.New(&recordingSource{}, cache.Options{Linger: time.Hour, IdleEntries: 10})
	defer c.Close()
	server, _ := newTestServer(c, limit)
	var clients []*testClient
	join := func() *testClient {
		client := newTestClient(server, deltaForm.name, &corev3.Node{Id: "bench"})
		if err := client.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{benchGlob}}); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, client)
		return client
	}
	defer func() {
		for _, client := range clients {
			client.close()
		}
	}()
	// read returns all buffers that a client is sent. Whoever holds them keeps them shared.
	read := func(client *testClient) (all mem.BufferSlice) {
		resources := 0
		for {
			r := client.st.next()
			if r == nil {
				break
			}
			msg := r.Encode()
			if n := msg.Len(); n > limit {
				t.Errorf("a response of %d bytes", n)
			}
			if r.Names.Total != r.Count {
				t.Errorf("%d names of %d resources, for who is to say what a client rejects", r.Names.Total, r.Count)
			}
			all, resources = append(all, msg...), resources+r.Count
		}
		if resources != members {
			t.Errorf("%d resources", resources)
		}
		return all
	}
	first := join()
	all := make([]cache.Change, members)
	for i := range all {
		all[i] = benchMember(i, strings.Repeat("x", 100))
	}
	applyGlob(c, true, all...)
	before := read(first)
	check := func(when string, got mem.BufferSlice, mostPrivate int) {
		t.Helper()
		shared, private := map[*byte]bool{}, 0
		for _, b := range before {
			shared[unsafe.SliceData(b.ReadOnlyData())] = true
		}
		for _, b := range got {
			if !shared[unsafe.SliceData(b.ReadOnlyData())] {
				private += b.Len()
			}
		}
		const most = members / 100 // buffers
		if len(got) > most || private > mostPrivate {
			t.Errorf("%s: %d buffers, and %d bytes of their own; want at most %d and %d", when, len(got), private, most, mostPrivate)
		}
	}
	check("nothing has changed", read(join()), 2000)
	applyGlob(c, false, benchMember(members/2, "y"))
	check("one member has changed", read(join()), 200_000)

	// Neither is there anything to be done for each member.
	if n := testing.AllocsPerRun(5, func() {
		client := join()
		for client.st.next() != nil {
		}
	}); n > members/10 {
		t.Errorf("%v allocations", n)
	}
	for _, b := range before {
		b.Free()
	}
}
