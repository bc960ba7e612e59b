package downstream

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

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
		if want := "60 percent of the memory needed, and this client takes more than others, but limits.memory_names is 50 percent"; why != want {
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

// Whose streams end is decided by everything that clients take: names, Nodes and load reports.
func TestWhoTakesTheMost(t *testing.T) {
	const limit = 10_000_000
	withValues := func(n *corev3.Node, values int) *corev3.Node {
		n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for i := range values {
			n.Metadata.Fields[fmt.Sprint("key-", i)] = structpb.NewStringValue("value")
		}
		return n
	}
	for _, test := range []struct {
		name        string
		names, node map[string]int // of clients: how many, and of how many values
		loads       map[string]int64
		ends        string // whose stream
	}{
		{name: "names", names: map[string]int{"a": 1000, "b": 100}, ends: "a"},
		{name: "a Node", names: map[string]int{"b": 100}, node: map[string]int{"a": 4000}, ends: "a"},
		{name: "load reports", names: map[string]int{"b": 1000, "a": 1}, loads: map[string]int64{"a": 2_000_000}}, // with reports
		{name: "few load reports", names: map[string]int{"b": 1000, "a": 1}, loads: map[string]int64{"a": 20_000}, ends: "b"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := &fakeMemory{limit: limit}
				ch := newTestCache(silentSource{}, 1000)
				defer ch.Close()
				server := newFederatedServer(ch)
				server.pressure.memory = memory
				loads := newLoadTaker()
				loads.held = map[any]int64{}
				server.options.Loads = loads
				g := newGate(ListenerOptions{Limits: Limits{MemoryNames: 0.5, MemoryStreams: 0.9}})
				clients := map[string]*testClient{}
				open := func(subject string) *testClient {
					c, err := identified(t, server, g, &identity.Identity{Source: identity.MTLS, Subject: subject}, at("10.0.0.1"))
					if err != nil {
						t.Fatal(err)
					}
					clients[subject] = c
					return c
				}
				var call *loadCall
				for _, subject := range []string{"a", "b", "small"} {
					c := open(subject)
					if err := takeEncoded(c.st, &discoveryv3.DeltaDiscoveryRequest{Node: withValues(c.takeNode(), test.node[subject]), TypeUrl: clusterType, ResourceNamesSubscribe: madeUp(test.names[subject]+1, subject)}); err != nil {
						t.Fatal(err)
					}
					loads.held[c.st.uses.key] = test.loads[subject]
					loads.allHeld += test.loads[subject]
					if subject == "a" {
						call = &loadCall{server: server, grpc: c.st.grpc, in: &arrival{server: server, gate: g, uses: c.st.uses, identity: c.st.identity}}
						server.loadCalls.add(call)
					}
				}
				memory.grows(limit * 92 / 100)
				ended := server.stats.limits[limitMemoryStreams].Load()
				if names, _ := clients["small"].refusedNames(t, "t"); names != nil {
					t.Errorf("a client with few names is refused %q", names)
				}
				synctest.Wait()
				if n := server.stats.limits[limitMemoryStreams].Load() - ended; n != 1 {
					t.Errorf("%d streams end, want 1", n)
				}
				for subject, c := range clients {
					if ends := c.st.byRelay.Load(); ends != (subject == test.ends) {
						t.Errorf("the stream of %s ends: %v", subject, ends)
					}
				}
				server.loadCalls.remove(call)
				for _, c := range clients {
					c.depart()
				}
				if cost := server.identities.cost.Load() + server.pressure.inWork.Load(); cost != 0 {
					t.Errorf("%d bytes are left when all clients have left", cost)
				}
			})
		})
	}
}

// takeEncoded has a stream process an encoded request.
func takeEncoded(st *stream, req *discoveryv3.DeltaDiscoveryRequest) error {
	_, err := take(st, deltaForm, encoded(req))
	return err
}

// What a Node is thought to cost is about what it takes in memory.
func TestCostOfANode(t *testing.T) {
	skipUnderRace(t)
	for _, values := range []int{100, 4000} {
		fields := map[string]*structpb.Value{}
		for i := range values {
			fields[fmt.Sprint("key-", i)] = structpb.NewStringValue("value")
		}
		request := encoded(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Metadata: &structpb.Struct{Fields: fields}}})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		const n = 50
		var all [n]discoveryv3.DeltaDiscoveryRequest
		for i := range all {
			if err := proto.Unmarshal(request, &all[i]); err != nil {
				t.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		takes, cost := int(after.HeapAlloc-before.HeapAlloc)/n, costOfNode(deltaForm.fields.Cost(request, nodeLimits))
		if cost < takes/2 || cost > 2*takes {
			t.Errorf("a Node of %d values takes %d bytes, and is thought to cost %d", values, takes, cost)
		}
		runtime.KeepAlive(&all)
	}
}
