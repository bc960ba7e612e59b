package downstream

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// What a quiet client costs, as counts.

// Bounds, each a little above what is so today: to be lowered with it.
const (
	// bytesPerSubscription is what a name adds to a client that was sent its resource.
	bytesPerSubscription = 64
	// bytesPerSharedName is that of a client that asks for the same names as others.
	bytesPerSharedName = 1
	// bytesPerClient is what a client has in addition, with one type. It includes what is rounded up for
	// its subscriptions.
	bytesPerClient = 3200
	// bytesPerSharingClient is that of a client that asks for the same names as others.
	bytesPerSharingClient = 2400
)

// TestCostOfAQuietClient: all of its goroutines and timers are gRPC's, as on a server that holds the same streams and
// does nothing.
func TestCostOfAQuietClient(t *testing.T) {
	const clients = 40
	names := benchNames(10)
	bare := func(g *grpc.Server) {
		hold := func(_ any, st grpc.ServerStream) error {
			var in incoming
			if err := st.RecvMsg(&in); err != nil {
				return err
			}
			if err := st.SendMsg(&session.Response{TypeURL: endpointType, Nonce: "1"}); err != nil {
				return err
			}
			for {
				if err := st.RecvMsg(&in); err != nil {
					return err // the client has gone
				}
			}
		}
		g.RegisterService(&grpc.ServiceDesc{ServiceName: xdstype.AggregatedV3.Name, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
			streamDesc(xdstype.AggregatedV3.Stream, hold), streamDesc(xdstype.AggregatedV3.Delta, hold),
		}}, nil)
	}
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			// A few come and go with the process, but not one for each client.
			const few = clients / 2
			var goroutines, timers [2]int
			for range 3 { // what other tests leave behind only adds to it
				for i, relayed := range []bool{false, true} {
					synctest.Test(t, func(t *testing.T) {
						var m memory
						if relayed {
							r := newRelay(t)
							first := newTestClient(r.server, deltaForm.name, &corev3.Node{})
							defer first.close()
							subscribe(t, first, endpointType, names...)
							r.cache.Apply(puts(endpointType, "v", values(len(names), 10, 0)...))
							m = r.memory
						} else {
							m = serveInMemory(t, bare, ServerOptions(ListenerOptions{})...)
						}
						goroutines[i], timers[i] = m.quiet(form, clients, names)
					})
				}
				if goroutines[1] <= goroutines[0]+few && timers[1] <= timers[0]+few {
					break
				}
			}
			if goroutines[0] < clients || timers[0] < clients {
				t.Fatalf("gRPC has %d goroutines and %d timers for %d clients: they are not counted", goroutines[0], timers[0], clients)
			}
			if goroutines[1] > goroutines[0]+few {
				t.Errorf("%d clients have %d goroutines, want gRPC's %d", clients, goroutines[1], goroutines[0])
			}
			if timers[1] > timers[0]+few {
				t.Errorf("%d clients have %d timers, want gRPC's %d", clients, timers[1], timers[0])
			}
		})
	}
}

// quiet has clients come, each on a connection of its own, take what they are sent, and
// be quiet. It returns the goroutines and the timers that there are for them then.
func (m memory) quiet(form string, clients int, names []string) (goroutines, timers int) {
	m.t.Helper()
	rate := runtime.MemProfileRate
	runtime.MemProfileRate = 1 // timers are found by who allocates them
	defer func() { runtime.MemProfileRate = rate }()
	synctest.Wait()
	goroutines, timers = -runtime.NumGoroutine(), -liveTimers()
	ctx, cancel := context.WithCancel(m.t.Context())
	m.t.Cleanup(cancel)
	for range clients {
		m.client(ctx, form, names)
	}
	synctest.Wait()
	time.Sleep(time.Minute) // of the bubble: what ends by itself has ended
	synctest.Wait()
	return goroutines + runtime.NumGoroutine(), timers + liveTimers()
}

// client opens a stream and acknowledges the first response.
func (m memory) client(ctx context.Context, form string, names []string) {
	m.t.Helper()
	method := xdstype.AggregatedV3.Stream
	if form == deltaForm.name {
		method = xdstype.AggregatedV3.Delta
	}
	st, err := m.dial().NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, xdstype.AggregatedV3.Method(method))
	if err != nil {
		m.t.Fatal(err)
	}
	send := func(request proto.Message) {
		if err := st.SendMsg(request); err != nil {
			m.t.Fatal(err)
		}
	}
	receive := func(response proto.Message) {
		if err := st.RecvMsg(response); err != nil {
			m.t.Fatal(err)
		}
	}
	node := &corev3.Node{Id: "test"}
	if form == deltaForm.name {
		send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: endpointType, ResourceNamesSubscribe: names})
		var response discoveryv3.DeltaDiscoveryResponse
		receive(&response)
		send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: response.GetNonce()})
		return
	}
	send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: endpointType, ResourceNames: names})
	var response discoveryv3.DiscoveryResponse
	receive(&response)
	send(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names, ResponseNonce: response.GetNonce(), VersionInfo: response.GetVersionInfo()})
}

// liveTimers counts the timers that are reachable: those that run are.
func liveTimers() (n int) {
	runtime.GC()
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 1000)
	for {
		count, ok := runtime.MemProfile(records, false)
		if ok {
			records = records[:count]
			break
		}
		records = make([]runtime.MemProfileRecord, 2*count)
	}
	for _, r := range records {
		frames := runtime.CallersFrames(r.Stack())
		for {
			f, more := frames.Next()
			if f.Function == "time.newTimer" || f.Function == "time.NewTimer" || f.Function == "time.AfterFunc" || f.Function == "time.NewTicker" {
				n += int(r.InUseObjects())
				break
			}
			if !more {
				break
			}
		}
	}
	return n
}

// TestCostOfASubscription: the relay keeps a few bytes for each subscription of a client that has acknowledged its
// resources, and nothing for each if others request the same names.
func TestCostOfASubscription(t *testing.T) {
	skipUnderRace(t)
	const clients, few, many = 3000, 100, 200 // many: other tests leave some that goes meanwhile
	for _, test := range []struct {
		name, form    string
		shared        bool
		most, besides float64
	}{
		{"delta", deltaForm.name, false, bytesPerSubscription, bytesPerClient},
		{"sotw", sotwForm.name, false, bytesPerSubscription, bytesPerClient},
		{"delta, of the same names", deltaForm.name, true, bytesPerSharedName, bytesPerSharingClient},
		{"sotw, of the same names", sotwForm.name, true, bytesPerSharedName, bytesPerSharingClient},
	} {
		t.Run(test.name, func(t *testing.T) {
			var perClient [2]float64
			var perName, besides float64
			for range 3 { // what others leave behind only adds to it
				for i, n := range []int{few, many} {
					perClient[i] = costOfClients(t, test.form, test.shared, n, many, clients)
				}
				perName = (perClient[1] - perClient[0]) / (many - few)
				besides = perClient[0] - few*perName
				if perName <= test.most && besides <= test.besides {
					break
				}
			}
			if perName > test.most {
				t.Errorf("%.0f bytes for each subscription, want at most %.0f", perName, test.most)
			}
			if besides > test.besides {
				t.Errorf("%.0f bytes for each client without its subscriptions, want at most %.0f", besides, test.besides)
			}
			t.Logf("for each subscription %.0f bytes, for each client without them %.0f", perName, besides)
		})
	}
}

// costOfClients is the memory of each of so many clients that ask for n of the names that
// there are: in the same order if they are to share them.
func costOfClients(t *testing.T, form string, shared bool, n, names, clients int) (bytes float64) {
	t.Helper()
	all := benchNames(names)
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
		c.join(form, endpointType, all...) // so that what the cache has is there
		c.counted(func() cache.Update { return puts(endpointType, "v", values(names, 10, 0)...) })
		order, came := slices.Clone(all[:n]), 0
		come := func() {
			if !shared { // nobody else has this order
				came++
				order[came%n], order[came/n%n] = order[came/n%n], order[came%n]
			}
			st := c.join(form, endpointType, order...)
			g := c.grpc[len(c.grpc)-1]
			c.take(st, g.ack(t, form, order))
			g.last = nil
		}
		come()
		come() // what the first two leave behind is the process's
		before := liveHeap()
		for range clients {
			come()
		}
		bytes = float64(liveHeap()-before) / float64(clients)
		runtime.KeepAlive(c)
	})
	return bytes
}
