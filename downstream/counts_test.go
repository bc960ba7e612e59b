package downstream

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"unsafe"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// What a client costs, as counts: allocations, copies and bytes. They depend on no
// time, so they are tests; what takes time is measured by bench/. Where the race
// detector allocates as well they are skipped: `make test` runs them without it too.

// Bounds, each a little above what is so today: to be lowered with it.
const (
	// privateBytes is what is allocated for one client that is sent one changed
	// resource, whatever its size: see allocs of sentIn.
	privateBytes = 1 << 10
)

func skipUnderRace(t *testing.T) {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector allocates as well")
	}
}

// countingStream takes messages as gRPC does: it has the codec make bytes of them.
type countingStream struct {
	notGRPC
	codec    encoding.CodecV2
	messages int
	last     mem.BufferSlice
}

func (s *countingStream) SendMsg(m any) (err error) {
	s.messages++
	s.last, err = s.codec.Marshal(m)
	return err
}

// crowd are many clients of one server, with real senders, for tests in a bubble.
type crowd struct {
	t       *testing.T
	cache   *cache.Cache
	server  *Server
	streams []*stream
	grpc    []*countingStream
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	c := newTestCache(silentSource{}, 1<<20)
	t.Cleanup(c.Close)
	return &crowd{t: t, cache: c, server: NewServer(c, newClusterNames, Options{Log: slog.New(slog.DiscardHandler)})}
}

// join has a client come with a first request, and settle.
func (c *crowd) join(form, typeURL string, names ...string) *stream {
	c.t.Helper()
	g := &countingStream{codec: newCodec(0)}
	st := c.server.open(g, nil, form, "")
	c.t.Cleanup(func() {
		if !st.closed { // serve has
			st.end()
		}
		c.server.forget(st)
	})
	c.streams, c.grpc = append(c.streams, st), append(c.grpc, g)
	node := &corev3.Node{Id: "test"}
	if form == deltaForm.name {
		c.take(st, encoded(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: names}))
	} else {
		c.take(st, encoded(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNames: names}))
	}
	return st
}

// take does what serve does with a request, and waits for what comes of it.
func (c *crowd) take(st *stream, request []byte) {
	c.t.Helper()
	var answer bool
	var err error
	if st.form == deltaForm.name {
		answer, err = take(st, deltaForm, request)
	} else {
		answer, err = take(st, sotwForm, request)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	if answer && st.inbox.wake() {
		st.Wake()
	}
	synctest.Wait()
}

// counted applies an update, waits until all is sent, and returns what was allocated
// from the making of the update on.
func (c *crowd) counted(make func() cache.Update) (mallocs, bytes uint64) {
	c.t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c.cache.Apply(make())
	synctest.Wait()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs, after.TotalAlloc - before.TotalAlloc
}

// messages are how many all clients were sent.
func (c *crowd) messages() (n int) {
	for _, g := range c.grpc {
		n += g.messages
	}
	return n
}

// puts is an update of resources, under their names and in the wildcard. Their values
// are copied here, once.
func puts(typeURL, version string, values ...[]byte) cache.Update {
	var changes []cache.Change
	for i, value := range values {
		name := benchName(i)
		changes = append(changes, cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{Name: name, Version: version, TypeURL: typeURL, Value: value})})
	}
	return cache.Update{Scope: oldStyleScope(""), TypeURL: typeURL, Changes: changes,
		Sets: []cache.SetUpdate{{Name: cache.Wildcard, Changes: changes}}}
}

// values are those of the first n resources, in one round of changes.
func values(n, size, round int) (all [][]byte) {
	for i := range n {
		all = append(all, encodeContent(benchName(i), fmt.Sprintf("%d%0*d", round, size, 0)))
	}
	return all
}

// sentIn are the ways in which clients are sent a change. allocs is for each client that is sent
// of one changed resource, from Apply to the bytes that gRPC is given, with the waking.
var sentIn = []struct {
	name, form, typeURL string
	names               []string
	full                bool // the whole state
	allocs              int
}{
	{"delta name", deltaForm.name, endpointType, benchNames(2), false, 3},
	{"delta wildcard", deltaForm.name, clusterType, []string{"*"}, false, 9},
	{"sotw name", sotwForm.name, endpointType, benchNames(2), false, 4},
	{"sotw wildcard", sotwForm.name, clusterType, []string{"*"}, true, 14},
}

// TestCostOfAnUpdate: an update of one resource costs each client a few small allocations. The resource is copied once
// when it comes, and once more for all clients that are sent the full state.
func TestCostOfAnUpdate(t *testing.T) {
	skipUnderRace(t)
	const clients, resources, rounds, size = 200, 2, 20, 1 << 19
	for _, test := range sentIn {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t)
				for range clients {
					c.join(test.form, test.typeURL, test.names...)
				}
				c.counted(func() cache.Update { return puts(test.typeURL, "v", values(resources, size, 0)...) })
				leastMallocs, leastBytes := ^uint64(0), ^uint64(0) // what else the runtime does comes and goes
				for round := range rounds {
					changed, before := values(1, size, round+1), c.messages()
					mallocs, bytes := c.counted(func() cache.Update { return puts(test.typeURL, "v", changed...) })
					if got := c.messages() - before; got != clients {
						t.Fatalf("%d messages were sent, want one to each of %d", got, clients)
					}
					leastMallocs, leastBytes = min(leastMallocs, mallocs), min(leastBytes, bytes)
				}
				if got := float64(leastMallocs) / clients; got > float64(test.allocs) {
					t.Errorf("%.1f allocations for each client, want at most %d", got, test.allocs)
				}
				copied := 1
				if test.full {
					copied += resources
				}
				if most := uint64(clients*privateBytes + copied*size + size/2); leastBytes > most {
					t.Errorf("%d bytes are allocated for %d clients and a resource of %d bytes, want at most %d: it is to be copied once", leastBytes, clients, size, most)
				}
				t.Logf("for each client: %.1f allocations; %.2f copies of the resource", float64(leastMallocs)/clients, float64(leastBytes)/size)
			})
		})
	}
}

// TestCostOfAState: all clients are sent a state in one buffer, also those that connect later: the full state is put
// together once.
func TestCostOfAState(t *testing.T) {
	const clients, resources, size = 20, 3, 1000
	for _, test := range sentIn {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t)
				// Others change first, so that only one is to be sent, unless all are.
				c.counted(func() cache.Update { return puts(test.typeURL, "v", values(resources, size, 0)...) })
				for range clients {
					c.join(test.form, test.typeURL, test.names...)
				}
				c.counted(func() cache.Update { return puts(test.typeURL, "v", values(resources, size, 0)...) })
				bodies := map[*byte]int{}
				look := func(g *countingStream) {
					for _, piece := range g.last {
						if b := piece.ReadOnlyData(); len(b) >= size {
							bodies[unsafe.SliceData(b)]++
						}
					}
				}
				c.counted(func() cache.Update { return puts(test.typeURL, "v", values(1, size, 1)...) })
				for _, g := range c.grpc {
					look(g)
				}
				if len(bodies) != 1 {
					t.Fatalf("%d clients are sent %d different buffers, want 1", clients, len(bodies))
				}
				c.join(test.form, test.typeURL, test.names...)
				look(c.grpc[clients])
				want := 1
				if !test.full {
					want = len(test.names) // it is sent what the others had before
					if test.names[0] == "*" {
						want = 2 // in a run that is for all who come
					}
				}
				if len(bodies) != want {
					t.Errorf("one who comes later is sent %d other buffers, want %d", len(bodies)-1, want-1)
				}
			})
		})
	}
}

// feed is a stream from which a request is read so many times.
type feed struct {
	*countingStream
	request mem.BufferSlice
	left    int
}

func (f *feed) RecvMsg(m any) error {
	if f.left == 0 {
		return io.EOF
	}
	f.left--
	f.request[0].Ref()
	return f.codec.Unmarshal(f.request, m)
}

// TestCostOfAnACK: an ACK allocates nothing, even if it repeats 100 names and the Node.
func TestCostOfAnACK(t *testing.T) {
	skipUnderRace(t)
	const acks = 1000
	names := benchNames(100)
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t)
				st := c.join(form, endpointType, names...)
				c.counted(func() cache.Update { return puts(endpointType, "v", values(len(names), 10, 0)...) })
				f := &feed{countingStream: c.grpc[0], request: mem.BufferSlice{mem.SliceBuffer(c.grpc[0].ack(t, form, names))}, left: acks}
				st.grpc = f
				c.server.stats.requests.Store(0)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				var err error
				if form == deltaForm.name {
					err = serve(st, deltaForm)
				} else {
					err = serve(st, sotwForm)
				}
				runtime.ReadMemStats(&after)
				if n := c.server.Stats().Requests; err != nil || n != acks {
					t.Fatalf("%d ACKs were taken, want %d: %v", n, acks, err)
				}
				const around = 200 // the end of the stream, and what the runtime does
				if got := after.Mallocs - before.Mallocs; got > around {
					t.Errorf("%d ACKs allocate %d times", acks, got)
				}
				t.Logf("%d ACKs: %d allocations", acks, after.Mallocs-before.Mallocs)
			})
		})
	}
}

// ack is the ACK of the last response, as Envoy sends it.
func (s *countingStream) ack(t *testing.T, form string, names []string) []byte {
	t.Helper()
	node := &corev3.Node{Id: "test"}
	var response discoveryv3.DiscoveryResponse // nonce and type have the same numbers in both
	if err := proto.Unmarshal(s.last.Materialize(), &response); err != nil {
		t.Fatal(err)
	}
	if form == deltaForm.name {
		return encoded(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: response.GetTypeUrl(), ResponseNonce: response.GetNonce()})
	}
	return encoded(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: response.GetTypeUrl(), ResourceNames: names,
		ResponseNonce: response.GetNonce(), VersionInfo: response.GetVersionInfo()})
}
