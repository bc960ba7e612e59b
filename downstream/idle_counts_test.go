package downstream

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// What a quiet client costs, as counts.

// Bounds, each a little above what is so today: to be lowered with it.
const (
	// bytesPerSubscription is what a name adds to a client that was told its resource.
	bytesPerSubscription = 64
	// bytesPerClient is what a client has besides, with one type.
	bytesPerClient = 3 << 10
)

// TestCostOfAQuietClient: its goroutines and timers are gRPC's, as on a server that
// holds the same streams and does nothing.
func TestCostOfAQuietClient(t *testing.T) {
	const clients = 40
	names := benchNames(10)
	bare := func(g *grpc.Server) {
		hold := func(_ any, st grpc.ServerStream) error {
			var in incoming
			if err := st.RecvMsg(&in); err != nil {
				return err
			}
			if err := st.SendMsg(&response{typeURL: endpointType, nonce: "1"}); err != nil {
				return err
			}
			for {
				if err := st.RecvMsg(&in); err != nil {
					return err // the client has gone
				}
			}
		}
		g.RegisterService(&grpc.ServiceDesc{ServiceName: doors[0].service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
			streamDesc(doors[0].sotw, hold), streamDesc(doors[0].delta, hold),
		}}, nil)
	}
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			var goroutines, timers [2]int
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
			if goroutines[0] < clients || timers[0] < clients {
				t.Fatalf("gRPC has %d goroutines and %d timers for %d clients: they are not counted", goroutines[0], timers[0], clients)
			}
			// A few come and go with the process, but not one for each client.
			const few = clients / 2
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
	method := doors[0].sotw
	if form == deltaForm.name {
		method = doors[0].delta
	}
	st, err := m.dial().NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/"+doors[0].service+"/"+method)
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

// TestCostOfASubscription: what is kept for a client that was told its resources and has
// acknowledged them is a few bytes for each.
func TestCostOfASubscription(t *testing.T) {
	skipUnderRace(t)
	const clients, few, many = 3000, 100, 200 // many: other tests leave some that goes meanwhile
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			var perClient [2]float64
			var perName, besides float64
			for range 3 { // what others leave behind only adds to it
				for i, n := range []int{few, many} {
					perClient[i] = costOfClients(t, form, n, many, clients)
				}
				perName = (perClient[1] - perClient[0]) / (many - few)
				besides = perClient[0] - few*perName
				if perName <= bytesPerSubscription && besides <= bytesPerClient {
					break
				}
			}
			if perName > bytesPerSubscription {
				t.Errorf("%.0f bytes for each subscription, want at most %d", perName, bytesPerSubscription)
			}
			if besides > bytesPerClient {
				t.Errorf("%.0f bytes for each client besides its subscriptions, want at most %d", besides, bytesPerClient)
			}
			t.Logf("for each subscription %.0f bytes, for each client besides %.0f", perName, besides)
		})
	}
}

// costOfClients is the memory of each of so many clients that ask for n of the names that
// there are.
func costOfClients(t *testing.T, form string, n, names, clients int) (bytes float64) {
	t.Helper()
	all := benchNames(names)
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
		c.join(form, endpointType, all...) // so that what the cache has is there
		c.counted(func() cache.Update { return puts(endpointType, "v", values(names, 10, 0)...) })
		come := func() {
			st := c.join(form, endpointType, all[:n]...)
			g := c.grpc[len(c.grpc)-1]
			c.take(st, g.ack(t, form, all[:n]))
			g.last = nil
		}
		come() // what the first leaves behind is the process's
		before := heap()
		for range clients {
			come()
		}
		bytes = float64(heap()-before) / float64(clients)
		runtime.KeepAlive(c)
	})
	return bytes
}
