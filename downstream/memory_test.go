package downstream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/identity"
)

// fakeMemory is a process that needs so much of its memory.
type fakeMemory struct{ needed, collection, limit uint64 }

func (m *fakeMemory) Needed() (needed, collection, limit uint64) {
	return m.needed, m.collection, m.limit
}

// grows is a garbage collection after which the process needs so much.
func (m *fakeMemory) grows(needed uint64) { m.needed, m.collection = needed, m.collection+1 }

func madeUp(n int, prefix string) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

// refusedNames subscribes, and returns the names that the client is refused, and why.
func (c *testClient) refusedNames(t *testing.T, add ...string) (names []string, why string) {
	t.Helper()
	if err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: add}); err != nil {
		t.Fatalf("the stream ends: %v", err)
	}
	for _, r := range c.readAll(t) {
		for _, e := range r.errors {
			if e.code == codes.ResourceExhausted {
				names, why = append(names, e.name), e.message
			}
		}
	}
	slices.Sort(names)
	return names, why
}

// Above the first mark, clients that take much get no more names. Above the second, their streams end. Others notice
// nothing.
func TestClientsWithManyNamesGetNoMoreWhenMemoryIsScarce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10_000_000
		memory := &fakeMemory{limit: limit}
		ch := newTestCache(silentSource{}, 1000)
		defer ch.Close()
		server := newFederatedServer(ch)
		server.pressure.memory = memory
		g := newGate(ListenerOptions{Limits: Limits{MemoryNames: 0.5, MemoryStreams: 0.9}})
		open := func(subject, ip string) *testClient {
			c, err := identified(t, server, g, &identity.Identity{Source: identity.MTLS, Subject: subject}, at(ip))
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		large, second, small := open("large", "10.0.0.1"), open("large", "10.0.0.2"), open("small", "10.0.0.1")
		expect := func(what string, c *testClient, add []string, want ...string) (why string) {
			t.Helper()
			names, why := c.refusedNames(t, add...)
			if !slices.Equal(names, want) {
				t.Errorf("%s: refused %d names, %.200q: want %d", what, len(names), names, len(want))
			}
			return why
		}
		expect("enough memory", large, madeUp(3000, "a"))
		expect("a few names", small, madeUp(2, "s"))
		memory.grows(limit * 6 / 10)
		why := expect("above the first mark", large, madeUp(20, "b"), slices.Sorted(slices.Values(madeUp(20, "b")))...)
		if want := "60 percent of the memory needed, and this client has more names than others, but limits.memory_names is 50 percent"; why != want {
			t.Errorf("the client is told %q, want %q", why, want)
		}
		expect("what it has", large, madeUp(20, "a"))
		expect("a client with few names", small, madeUp(1, "t"))
		expect("another stream of the same identity", second, madeUp(5, "u"))
		memory.grows(limit * 4 / 10)
		expect("enough memory again", large, madeUp(20, "b"))
		expect("more than there is room for, in one request", large, madeUp(2000, "c"), slices.Sorted(slices.Values(madeUp(2000, "c")))...)
		memory.grows(limit * 92 / 100)
		ended := server.stats.limits[limitMemoryStreams].Load()
		expect("above the second mark, a client with few names", small, madeUp(1, "v"))
		synctest.Wait()
		if n := server.stats.limits[limitMemoryStreams].Load() - ended; n != 1 || !large.st.byRelay.Load() || second.st.byRelay.Load() || small.st.byRelay.Load() {
			t.Errorf("%d streams end, want the one with the most names", n)
		}
		if why := large.subscribes(t, clusterType, madeUp(100, "d"), nil); !strings.Contains(why, "but limits.memory_streams is 90 percent") {
			t.Errorf("above the second mark, the stream ends with %q", why)
		}
		for _, c := range []*testClient{large, second, small} {
			c.depart()
		}
		if cost := server.identities.cost.Load() + server.pressure.inWork.Load(); cost != 0 {
			t.Errorf("%d bytes are left when all clients have left", cost)
		}
	})
}
