package interop

// What the gRPC clients do with resources, directly and through the relay.

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// grpcClient is a gRPC client that is a program (foreign_test.go).
type grpcClient struct {
	name    string
	prepare func() error
	command func() []string
	// lacks says why the client does not support a scenario.
	lacks map[string]string
}

// The scenarios that some clients do not support.
const (
	noEndpointsLeft = "no endpoints left"
	returns         = "return of the removed"
	noListener      = "no listener"
	noRoutes        = "no routes"
	noEndpoints     = "no endpoints"
	fallback        = "fallback server"
)

var grpcClients = []grpcClient{
	{"grpc-java", prepareJava, func() []string { return javaPrograms.Command("Client") }, map[string]string{
		noEndpointsLeft: "grpc-java 1.85 continues with the last endpoints when a cluster has none any more",
		returns:         "grpc-java 1.85 and the linear cache sometimes miss each other, also without the relay",
	}},
	{"grpc-go", prepareGo, func() []string { return []string{peers.Program("grpcgo")} }, nil},
	{"grpc-js", prepareNode, func() []string { return []string{"node", "grpcjs/client.js"} }, map[string]string{
		returns:     "grpc-js-xds 1.14 ignores a resource that comes back as it was before its removal",
		noListener:  "grpc-js-xds 1.14 lets RPCs wait for a listener that does not exist",
		noRoutes:    "grpc-js-xds 1.14 lets RPCs wait for a route configuration that does not exist",
		noEndpoints: "grpc-js-xds 1.14 lets RPCs wait for endpoints that do not exist",
		fallback:    "grpc-js-xds 1.14 uses the first server of its bootstrap alone",
	}},
	{"C++ core", preparePython, func() []string { return []string{python, "python/client.py"} }, nil},
}

// prepareGo builds the client in grpcgo/.
var prepareGo = sync.OnceValue(func() error { return peers.Build(".", "grpcgo", "./grpcgo") })

// way is how a client receives resources: from the control plane itself, or through the relay, which speaks a
// form with the control plane. The clients themselves speak SotW.
type way struct {
	name    string
	form    form
	relayed bool
}

var ways = []way{
	{"direct", sotw, false},
	{"relay, SotW", sotw, true},
	{"relay, delta", delta, true},
}

// lane is a client that receives the resources of a scene on one way.
type lane struct {
	*scene
	way
	client   *foreigner
	backends []*backend
	started  time.Time
}

// openLane starts a control plane, the relay unless the way is direct, and a client.
func openLane(t testing.TB, w way, c grpcClient, start func(testing.TB) controlPlane, backends []*backend) *lane {
	t.Helper()
	p := startPlane(t, kind{name: w.name, form: w.form, start: start})
	address := p.address
	if w.relayed {
		address = startRelay(t, address).address
	}
	l := &lane{scene: newScene(t, p.controlPlane), way: w, backends: backends}
	l.client = c.dial(t, bootstrap(t, address))
	l.stock("warm", backends[0]) // the JVM loads and compiles for seconds
	l.push()
	l.await("warm", backends[0])
	l.started = time.Now()
	return l
}

// dial starts the client, and waits until it has sent an RPC without xDS.
func (c grpcClient) dial(t testing.TB, bootstrap string) *foreigner {
	t.Helper()
	b := startBackend(t, "without xDS")
	f := dialForeigner(t, c.name, bootstrap, fmt.Sprintf("dns:///127.0.0.1:%d", b.port), c.command()...)
	eventually(t, c.name+" sends RPCs", func() error { _, err := f.visit(); return err })
	return f
}

// call sends an RPC to a shop. Its error is that of the program, not that of the RPC.
func (l *lane) call(shop, key string, within time.Duration) answer {
	l.t.Helper()
	a, err := l.client.ask(method, "xds:///"+shop, key, fmt.Sprint(within.Milliseconds()))
	if err != nil {
		l.t.Fatal(err)
	}
	return a
}

// noKey is the header of RPCs for which it does not matter.
const noKey = "none"

// reaches sends an RPC, and returns an error if it does not reach a backend.
func (l *lane) reaches(shop string, want *backend) error {
	a := l.call(shop, noKey, patienceIn(l.t))
	switch {
	case a.Error != "":
		return fmt.Errorf("an RPC to %s failed: %s", shop, a.Error)
	case a.Backend != want.id:
		return fmt.Errorf("an RPC to %s reached %q", shop, a.Backend)
	}
	return nil
}

// await waits until RPCs to a shop reach a backend, one after the other, and returns how long it took until they
// did. grpc-js may go back to an old backend once.
func (l *lane) await(shop string, want *backend) time.Duration {
	l.t.Helper()
	const enough = 10
	start := time.Now()
	var took time.Duration
	for n := 0; n < enough; {
		err := l.reaches(shop, want)
		n++
		switch elapsed := time.Since(start); {
		case elapsed > patienceIn(l.t):
			l.t.Fatalf("waited in vain until RPCs to %s reach %s: %v", shop, want.id, err)
		case err != nil:
			n = 0
		case n == 1:
			took = elapsed
		}
	}
	return took
}

// awaitFailure waits until RPCs to a shop fail, and returns the code.
func (l *lane) awaitFailure(shop string) codes.Code {
	l.t.Helper()
	var code codes.Code
	eventually(l.t, "RPCs to "+shop+" fail", func() error {
		a := l.call(shop, noKey, patienceIn(l.t))
		if a.Error == "" || a.Code == codes.DeadlineExceeded {
			return fmt.Errorf("the outcome is %+v", a)
		}
		code = a.Code
		return nil
	})
	return code
}

// spread sends RPCs to a shop, and returns the ids of the backends that they reach, sorted.
func (l *lane) spread(shop string) string {
	l.t.Helper()
	const rpcs = 12
	reached := map[string]bool{}
	for range rpcs {
		a := l.call(shop, noKey, patienceIn(l.t))
		if a.Error != "" {
			l.t.Fatalf("an RPC to %s failed: %s", shop, a.Error)
		}
		reached[a.Backend] = true
	}
	var ids []string
	for id := range reached {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// observation is what a client did in a scenario. On all ways, the text has to be the same, and a measured time
// similar.
type observation struct {
	text     string
	took     time.Duration
	measured bool // the time is the median of several
	known    bool // the scenario has failed, as it does
}

// scenario is a test of a client. It fails if the client does not do what it has to, and returns what may
// differ between clients, but not between ways.
type scenario struct {
	name string
	run  func(*lane) observation
}

// scenarios run one after the other with the same client. A few need what those before them leave behind.
var scenarios = []scenario{
	{"first answer", firstAnswer},
	{"update", update},
	{"endpoint removal", endpointRemoval},
	{noEndpointsLeft, lastEndpointRemoval},
	{"cluster removal", clusterRemoval},
	{"listener removal", listenerRemoval},
	{returns, returnOfTheRemoved},
	{"names come and go", comeAndGo},
	{"aggregate cluster", aggregateCluster},
	{"ring hash", ringHash},
	{noListener, doesNotExist(listenerType)},
	{noRoutes, doesNotExist(routeType)},
	{"no cluster", doesNotExist(clusterType)},
	{noEndpoints, doesNotExist(endpointType)},
	{"CSDS", statusOfClient},
}

func firstAnswer(l *lane) observation {
	l.stock("first", l.backends[0])
	l.push()
	return observation{took: l.await("first", l.backends[0])}
}

// update measures the median time until RPCs follow a change of endpoints.
func update(l *lane) observation {
	l.stock("update", l.backends[0])
	l.push()
	l.await("update", l.backends[0])
	const rounds = 9
	var took []time.Duration
	for i := range rounds {
		to := l.backends[(i+1)%2]
		l.place("update", to)
		l.push()
		took = append(took, l.await("update", to))
	}
	slices.Sort(took)
	return observation{took: took[rounds/2], measured: true}
}

// endpointRemoval checks that no RPC fails while one of two endpoints is removed.
func endpointRemoval(l *lane) observation {
	both, one := l.backends[0].id+" "+l.backends[1].id, l.backends[0].id
	await := func(want string) time.Duration {
		start := time.Now()
		eventually(l.t, "RPCs reach "+want, func() error {
			if got := l.spread("shrinks"); got != want {
				return fmt.Errorf("they reach %q", got)
			}
			return nil
		})
		return time.Since(start)
	}
	l.stock("shrinks", l.backends[0], l.backends[1])
	l.push()
	await(both)
	l.place("shrinks", l.backends[0])
	l.push()
	return observation{took: await(one)}
}

// lastEndpointRemoval removes the only endpoint, and adds another.
func lastEndpointRemoval(l *lane) observation {
	l.stock("empties", l.backends[0])
	l.push()
	l.await("empties", l.backends[0])
	l.place("empties")
	l.push()
	start := time.Now()
	code := l.awaitFailure("empties")
	took := time.Since(start)
	l.place("empties", l.backends[1])
	l.push()
	l.await("empties", l.backends[1])
	return observation{text: code.String(), took: took}
}

// clusterRemoval removes a cluster to which a route still refers. gRPC's clients do not use it any more.
func clusterRemoval(l *lane) observation {
	l.stock("lost", l.backends[0])
	l.push()
	l.await("lost", l.backends[0])
	l.drop(clusterType, "lost")
	l.drop(endpointType, "lost")
	l.push()
	start := time.Now()
	return observation{text: l.awaitFailure("lost").String(), took: time.Since(start)}
}

func listenerRemoval(l *lane) observation {
	l.stock("closed", l.backends[0])
	l.push()
	l.await("closed", l.backends[0])
	l.drop(listenerType, "closed")
	l.push()
	start := time.Now()
	return observation{text: l.awaitFailure("closed").String(), took: time.Since(start)}
}

// returnOfTheRemoved adds again what the scenarios before it have removed. The cluster and the listener are as
// before.
func returnOfTheRemoved(l *lane) observation {
	l.stock("lost", l.backends[1])
	l.stock("closed", l.backends[0])
	l.push()
	took := l.await("lost", l.backends[1])
	l.await("closed", l.backends[0])
	return observation{took: took}
}

// comeAndGo closes a channel and opens it again. Meanwhile the control plane removes the shop, and adds it
// again. Other shops change at any time.
func comeAndGo(l *lane) observation {
	l.stock("stays", l.backends[0])
	l.stock("goes", l.backends[0])
	l.push()
	l.await("stays", l.backends[0])
	l.await("goes", l.backends[0])

	l.leave("goes")
	l.place("stays", l.backends[1])
	l.push()
	l.await("stays", l.backends[1])

	l.clear("goes")
	l.place("stays", l.backends[2])
	l.push()
	l.await("stays", l.backends[2])

	l.stock("goes", l.backends[1])
	l.place("stays", l.backends[0])
	l.push()
	took := l.await("goes", l.backends[1])
	l.await("stays", l.backends[0])
	return observation{took: took}
}

// leave closes the channel to a shop.
func (l *lane) leave(shop string) {
	l.t.Helper()
	if _, err := l.client.ask("close", "xds:///"+shop); err != nil {
		l.t.Fatal(err)
	}
}

func aggregateCluster(l *lane) observation {
	nobody := &backend{port: 1} // nothing listens there
	l.stockAggregate("aggregate", "aggregate-1", "aggregate-2")
	l.place("aggregate-1", l.backends[0])
	l.place("aggregate-2", l.backends[1])
	l.push()
	l.await("aggregate", l.backends[0])
	l.place("aggregate-1", nobody)
	l.push()
	took := l.await("aggregate", l.backends[1])
	l.place("aggregate-1", l.backends[0])
	l.push()
	l.await("aggregate", l.backends[0])
	return observation{took: took}
}

// ringHash observes which backend each key reaches, with three backends and with two.
func ringHash(l *lane) observation {
	l.stockRing("ring", l.backends[:3]...)
	l.push()
	start := time.Now()
	before := l.picks("ring", func([]string) bool { return true })
	took := time.Since(start)
	l.place("ring", l.backends[:2]...)
	l.push()
	after := l.picks("ring", func(picks []string) bool { return !slices.Contains(picks, l.backends[2].id) })
	return observation{text: fmt.Sprint(before, after), took: took}
}

// picks returns the backend that each of 12 keys reaches. They have to be accepted, and the same twice: while
// grpc-js connects, it takes the next backend of the ring.
func (l *lane) picks(shop string, accepts func([]string) bool) (picks []string) {
	l.t.Helper()
	const keys = 12
	eventually(l.t, "each key reaches its backend", func() error {
		last := picks
		picks = nil
		for i := range keys {
			a := l.call(shop, fmt.Sprint("key-", i), patience)
			if a.Error != "" {
				return fmt.Errorf("an RPC with key %d failed: %s", i, a.Error)
			}
			picks = append(picks, a.Backend)
		}
		if !accepts(picks) || !slices.Equal(picks, last) {
			return fmt.Errorf("the keys reach %v, and before %v", picks, last)
		}
		return nil
	})
	return picks
}

// missing has the types of which a shop can miss a resource.
var missing = []string{listenerType, routeType, clusterType, endpointType}

// without returns the name of the shop that misses its resource of a type.
func without(typeURL string) string { return "without-" + typeURL[strings.LastIndex(typeURL, ".")+1:] }

// stockMissing adds shops without one of their resources, and makes the client request them. A client takes
// 15 s to find out that a resource does not exist, so it begins before the other scenarios.
func (l *lane) stockMissing() {
	l.t.Helper()
	for _, typeURL := range missing {
		l.stock(without(typeURL), l.backends[0])
		l.drop(typeURL, without(typeURL))
	}
	l.push()
	for _, typeURL := range missing {
		l.call(without(typeURL), noKey, 100*time.Millisecond)
	}
}

// doesNotExist observes how RPCs fail if a resource does not exist, and how long it takes after the start. Then the
// resource comes.
func doesNotExist(typeURL string) func(l *lane) observation {
	return func(l *lane) observation {
		shop := without(typeURL)
		code := l.awaitFailure(shop)
		took := time.Since(l.started)
		l.stock(shop, l.backends[0])
		l.push()
		l.await(shop, l.backends[0])
		return observation{text: code.String(), took: took}
	}
}

// caches are the caches of go-control-plane.
var caches = []struct {
	name  string
	start func(testing.TB) controlPlane
}{
	{"linear cache", startLinear},
	{"snapshot cache", startSnapshots},
}

// TestGRPCBehavesTheSameThroughTheRelay runs the scenarios with each gRPC client, and checks that a client
// does the same directly and through the relay.
func TestGRPCBehavesTheSameThroughTheRelay(t *testing.T) {
	for _, cache := range caches {
		for _, c := range grpcClients {
			t.Run(cache.name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				required(t, c.name, c.prepare)
				backends := []*backend{startBackend(t, "b0"), startBackend(t, "b1"), startBackend(t, "b2")}
				compare(t, "go-control-plane, "+cache.name, c.name, ways, func(t *testing.T, w way, record func(string, observation)) {
					l := openLane(t, w, c, cache.start, backends)
					l.stockMissing()
					for _, s := range scenarios {
						if reason := c.lacks[s.name]; reason != "" {
							comparisons.note(s.name, c.name, reason)
							continue
						}
						t.Run(s.name, func(t *testing.T) {
							l.scene.t = t
							record(s.name, s.run(l))
						})
					}
				})
			})
		}
	}
}
