package downstream

import (
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/rollout"
	rolloutgate "github.com/xds-relay/xds-relay/rollout/gate"
)

// Clients of a server whose changes are rolled out by a real gate.

// gatedSource is the source of a cache to which a test writes through gates.
type gatedSource struct{ gates *rolloutgate.Controller }

func (s *gatedSource) Start(k cache.Key) {
	if k.Scope.New {
		s.gates.Start(k)
	}
}
func (s *gatedSource) Refresh(cache.Key) {}
func (s *gatedSource) Stop(k cache.Key) {
	if k.Scope.New {
		s.gates.Stop(k)
	} else {
		s.gates.AcceptedStopped(k)
	}
}

// gatedRollouts are the rollouts of clients that are all of one cohort.
type gatedRollouts struct{ *rolloutgate.Controller }

func (r gatedRollouts) Join(scope cache.Scope, c TrialClient) (Trial, uint64) {
	m, showing := r.Controller.Join(scope, rolloutgate.Client{
		Node: c.Name, Conn: c.Conn, Cohort: "all", Who: c.Who, CohortNow: func(cache.Scope) string { return "all" },
		Eligible: c.Eligible, Resumed: c.Resumed, Wake: c.Wake,
	})
	if m == nil {
		return nil, 0
	}
	return m, showing
}

// directBelow is a feed that has nothing below the gates but the cache.
type directBelow struct {
	sync.Mutex
	*cache.Cache
}

func (d *directBelow) Accept(updates []cache.Update)                        { d.Apply(updates...) }
func (*directBelow) Accepted(cache.Key, func(string, *cache.Resource)) bool { return false }

// throughGates is the way of updates through the gates.
type throughGates struct {
	gates *rolloutgate.Controller
	below *directBelow
	of    *rolloutgate.Options
}

func (t throughGates) Apply(updates ...cache.Update) {
	t.below.Lock()
	defer t.below.Unlock()
	t.gates.Apply(t.below, t.of, updates)
}

// gated has a server with a rollout of such options, nil for none.
type gated struct {
	cache  *cache.Cache
	gates  *rolloutgate.Controller
	sink   interface{ Apply(updates ...cache.Update) }
	server *Server
}

func newGated(o *rollout.Options) *gated {
	src := &gatedSource{}
	h := &gated{cache: newTestCache(src, 1<<20)}
	var settings *rolloutgate.Options
	if o != nil {
		settings = &rolloutgate.Options{Options: *o, RollsOut: func(string) bool { return true }, Grow: 1000}
	}
	h.gates = rolloutgate.NewController(h.cache, func(cache.Scope) *rolloutgate.Options { return settings }, func(a string) string { return a }, slog.New(slog.DiscardHandler))
	src.gates = h.gates
	options := Options{MaxResponseBytes: DefaultMaxResponseBytes, Log: slog.New(slog.DiscardHandler)}
	h.sink = h.cache
	if o != nil {
		h.gates.Opened(oldStyleScope(""), settings)
		options.Rollouts, h.sink = gatedRollouts{h.gates}, throughGates{h.gates, &directBelow{Cache: h.cache}, settings}
	}
	h.server = NewServer(h.cache, newClusterNames, options)
	return h
}

func (h *gated) close() {
	h.gates.Close()
	h.cache.Close()
}

func (h *gated) apply(version string, names ...string) {
	u := cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType}
	for _, name := range names {
		u.Changes = append(u.Changes, cache.Change{Name: name, Resource: newTestResource(endpointType, name, version, version)})
	}
	h.sink.Apply(u)
}

// ackingStream is a gRPC stream whose client acknowledges what it is sent, when the test has it do that.
type ackingStream struct {
	sinkStream
	sent chan<- *ackingStream
	st   *stream
	// body is the resources in the newest response, in the buffer in which they are sent.
	body unsafe.Pointer
}

// SendMsg implements grpc.ServerStream.
func (s *ackingStream) SendMsg(m any) error {
	if parts, _ := m.(*session.Response).Parts(); len(parts) == 1 {
		s.body = unsafe.Pointer(unsafe.SliceData(parts[0].ReadOnlyData()))
	}
	s.sent <- s
	return nil
}

// fleet are clients with the same names behind a rollout, each of a node of its own.
type fleet struct {
	testing.TB
	*gated
	form    string
	names   []string
	sent    chan *ackingStream
	clients []*ackingStream
}

func newFleet(t testing.TB, o *rollout.Options, form string, clients, names int) *fleet {
	f := &fleet{TB: t, gated: newGated(o), form: form, names: benchNames(names), sent: make(chan *ackingStream, clients)}
	for i := range clients {
		s := &ackingStream{sinkStream: sinkStream{t.Context()}, sent: f.sent}
		s.st = f.server.open(s, nil, form, "")
		f.clients = append(f.clients, s)
		node := &corev3.Node{Id: fmt.Sprint(i)}
		if form == deltaForm.name {
			f.take(s.st, &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: endpointType, ResourceNamesSubscribe: f.names})
		} else {
			f.take(s.st, &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: endpointType, ResourceNames: f.names})
		}
		if i == 0 {
			f.apply("1", f.names...)
		}
		f.acknowledge(1)
	}
	return f
}

func (f *fleet) end() {
	for _, s := range f.clients {
		s.st.end()
		f.server.forget(s.st)
	}
	f.gated.close()
}

// take does what serve does with a request.
func (f *fleet) take(st *stream, req proto.Message) {
	f.Helper()
	var answer bool
	var err error
	if f.form == deltaForm.name {
		answer, err = take(st, deltaForm, encoded(req))
	} else {
		answer, err = take(st, sotwForm, encoded(req))
	}
	if err != nil {
		f.Fatal(err)
	}
	if answer && st.inbox.wake() {
		st.Wake()
	}
}

// acknowledge waits for so many responses, and acknowledges each.
func (f *fleet) acknowledge(n int) {
	f.Helper()
	for range n {
		st := (<-f.sent).st
		st.mu.Lock()
		nonce := strconv.FormatUint(st.nonces, 10)
		st.mu.Unlock()
		if f.form == deltaForm.name {
			f.take(st, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: nonce})
		} else {
			f.take(st, &discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResponseNonce: nonce, ResourceNames: f.names})
		}
	}
}

// inSteps are the options of a rollout in steps of a soak each.
func inSteps(soak time.Duration) *rollout.Options {
	return &rollout.Options{First: 1, Steps: []float64{0.01, 0.1, 0.5}, Soak: rollout.Time(soak), Rejections: 1, Deaths: 2}
}

// TestARolloutMovesGroupsByOneBuffer: clients with the same names, some of whom get a change before others, are
// sent one buffer in each step of the rollout, and after any number of changes the group still watches all names
// for all of them.
func TestARolloutMovesGroupsByOneBuffer(t *testing.T) {
	const clients, changes, names = 50, 8, 20
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := inSteps(time.Second)
				f := newFleet(t, o, form, clients, names)
				defer f.end()
				for n := range changes {
					f.apply(fmt.Sprint("change ", n), f.names[n:n+names/2]...)
					f.acknowledge(clients)
					synctest.Wait()
					bodies := map[unsafe.Pointer]bool{}
					for i, s := range f.clients[1:] { // the first one came before there was a group
						bodies[s.body] = true
						if is := s.st.sessions[0]; !is.Inspect().Shares || is.SubscribedAlone() > 0 {
							t.Fatalf("change %d: client %d watches %d names by itself, want 0", n, i+1, is.SubscribedAlone())
						}
					}
					if most := len(o.Steps) + 2; len(bodies) > most { // the first clients, each step, and the rest
						t.Errorf("change %d: %d clients are sent %d buffers, want at most %d", n, clients-1, len(bodies), most)
					}
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if g := f.group(t); len(g.differing) > 0 || len(g.sides[rolledOut].members) > 0 {
					t.Errorf("after the rollouts the group watches %d names for %d clients on the new side, want 0", len(g.differing), len(g.sides[rolledOut].members))
				}
			})
		})
	}
}

// group returns the group of the clients.
func (f *fleet) group(t *testing.T) *watchGroup {
	t.Helper()
	for _, list := range f.server.lists.known {
		if l := list.Value(); l != nil && len(l.groups) == 1 {
			return l.groups[0]
		}
	}
	t.Fatal("there is no group")
	return nil
}

// TestCostOfARollout: the additional cost of a client that gets a change early depends neither on the number of clients
// nor on that of their names.
func TestCostOfARollout(t *testing.T) {
	skipUnderRace(t)
	const changes = 4
	cost := func(o *rollout.Options, clients, names int) (mallocs, bytes uint64) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, o, deltaForm.name, clients, names)
			defer f.end()
			change := func(n int) {
				f.apply(fmt.Sprint("change ", n), f.names[n])
				f.acknowledge(clients)
				synctest.Wait()
			}
			change(changes)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for n := range changes {
				change(n)
			}
			runtime.ReadMemStats(&after)
			messages := uint64(changes * clients)
			mallocs, bytes = (after.Mallocs-before.Mallocs)/messages, (after.TotalAlloc-before.TotalAlloc)/messages
		})
		return mallocs, bytes
	}
	const clients = 200
	plainMallocs, plainBytes := cost(nil, clients, 20)
	for _, size := range []struct{ clients, names int }{{clients, 20}, {4 * clients, 20}, {clients, 1000}} {
		mallocs, bytes := cost(inSteps(time.Second), size.clients, size.names)
		t.Logf("%d clients with %d names: %d allocations and %d bytes for each response, without a rollout %d and %d", size.clients, size.names, mallocs, bytes, plainMallocs, plainBytes)
		if mallocs > plainMallocs+mallocsOfRollout || bytes > plainBytes+bytesOfRollout {
			t.Errorf("%d clients with %d names: a response costs %d allocations and %d bytes, want at most %d and %d more than the %d and %d without a rollout",
				size.clients, size.names, mallocs, bytes, mallocsOfRollout, bytesOfRollout, plainMallocs, plainBytes)
		}
	}
}

// What a response costs more in a rollout in which half of the clients get it before the others: bounds, a
// little above what is so today.
const (
	mallocsOfRollout = 6
	bytesOfRollout   = 1 << 10
)

// One of 100 names changes, which 1,000 clients have: without a rollout; with a rollout in which one client is the
// first and all others follow; and with one in which half of the clients get it first.
func BenchmarkRollout(b *testing.B) {
	const clients = 1000
	first := inSteps(time.Millisecond)
	first.Steps = nil
	for _, bm := range []struct {
		name string
		o    *rollout.Options
	}{{"none", nil}, {"first", first}, {"half", inSteps(time.Millisecond)}} {
		b.Run(bm.name, func(b *testing.B) {
			f := newFleet(b, bm.o, deltaForm.name, clients, 100)
			defer f.end()
			n := 1
			b.ReportAllocs()
			for b.Loop() {
				n++
				f.apply(fmt.Sprint(n), f.names[n%len(f.names)])
				f.acknowledge(clients)
			}
		})
	}
}
