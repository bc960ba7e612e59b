package downstream

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
)

// What only shows with real streams. What is said on them is in the transcripts.

const patience = time.Minute // for what takes milliseconds

// memory is a server's address in a test's memory.
type memory struct {
	t   *testing.T
	lis *memconn.Listener
}

// serveInMemory serves what register registers until the test ends.
func serveInMemory(t *testing.T, register func(*grpc.Server), o ...grpc.ServerOption) memory {
	t.Helper()
	m := memory{t: t, lis: memconn.Listen(1 << 16)}
	g := grpc.NewServer(o...)
	register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(m.lis) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return m
}

// dial makes a connection of its own.
func (m memory) dial() *grpc.ClientConn {
	m.t.Helper()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return m.lis.DialContext(ctx) }))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// startedTopics is a source that says what it was asked for.
type startedTopics chan cache.Key

// Start implements cache.Source.
func (f startedTopics) Start(k cache.Key) { f <- k }

// Refresh implements cache.Source.
func (startedTopics) Refresh(cache.Key) {}

// Stop implements cache.Source.
func (startedTopics) Stop(cache.Key) {}

// relay is a served cache.
type relay struct {
	memory
	cache   *cache.Cache
	server  *Server
	started startedTopics
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	r := &relay{started: make(startedTopics, 1000)}
	r.cache = newTestCache(r.started, 1000)
	t.Cleanup(r.cache.Close)
	r.server, _ = newTestServer(r.cache, DefaultMaxResponseBytes)
	r.memory = serveInMemory(t, func(g *grpc.Server) {
		r.server.Register(g, ListenerOptions{LongPoll: patience, V2: true})
		healthpb.RegisterHealthServer(g, health.NewServer())
	}, ServerOptions(ListenerOptions{})...)
	return r
}

// testContext ends with the test, or with its patience.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for what goroutines that nobody can wait for will make true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

func TestRequestWithoutTypeIsRefused(t *testing.T) {
	r := newRelay(t)
	conn := r.dial()
	delta := openDelta(t, conn)
	if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err := delta.Recv()
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "type_url") {
		t.Errorf("a delta request without type_url gives %v", err)
	}
	sotw, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := sotw.Send(&discoveryv3.DiscoveryRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err = sotw.Recv()
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "type_url") {
		t.Errorf("a SotW request without type_url gives %v", err)
	}
	eventually(t, "the streams are forgotten", func() bool { return r.server.Clients() == 0 })
}

// The codec leaves all other messages alone.
func TestOtherServicesWorkBesides(t *testing.T) {
	r, err := healthpb.NewHealthClient(newRelay(t).dial()).Check(testContext(t), &healthpb.HealthCheckRequest{})
	if err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("the health service says %v, %v", r, err)
	}
}

func TestClientsMayAdvertiseGzip(t *testing.T) {
	r := newRelay(t)
	s := openDelta(t, r.dial(), grpc.UseCompressor(gzip.Name))
	subscribeTo(t, s, clusterType, "a")
	<-r.started
	content := strings.Repeat("compressible ", 10_000)
	putEverywhere(r.cache, clusterType, "a", content)
	if got := receive(t, s)["a"]; got != content {
		t.Errorf("the resource arrives with %d bytes, want %d", len(got), len(content))
	}
}

// A client that does not read delays nobody, and costs what one that reads does: the relay keeps nothing for it that it
// has not read.
func TestSlowClientDelaysNobodyAndCostsNoMore(t *testing.T) {
	const (
		updates = 200
		size    = 100_000
		leeway  = 60 * size // much less than what would pile up
	)
	r := newRelay(t)
	slow, fast := openDelta(t, r.dial()), openDelta(t, r.dial())
	subscribeTo(t, slow, clusterType, "*")
	subscribeTo(t, fast, clusterType, "*")
	<-r.started
	eventually(t, "both have subscribed", func() bool { return r.subscriptions() == 2 })
	var goroutines int
	var before, after runtime.MemStats
	for i := range updates {
		if i == updates/10 { // by now the slow one holds up its sender
			goroutines = runtime.NumGoroutine()
			runtime.GC()
			runtime.ReadMemStats(&before)
		}
		want := fmt.Sprint(strings.Repeat("x", size), i)
		putEverywhere(r.cache, clusterType, "a", want)
		for receive(t, fast)["a"] != want {
		}
	}
	if n := runtime.NumGoroutine(); n > goroutines+4 { // the fast one's sender may be there or not, and who takes its place
		t.Errorf("%d goroutines became %d", goroutines, n)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if after.HeapAlloc > before.HeapAlloc+leeway {
		t.Errorf("the heap grew from %d to %d bytes", before.HeapAlloc, after.HeapAlloc)
	}
	// When it reads again it gets what was under way, and then the newest.
	last := fmt.Sprint(strings.Repeat("x", size), updates-1)
	n := 1
	for ; receive(t, slow)["a"] != last; n++ {
	}
	if n > updates/10 {
		t.Errorf("it reads %d states, with %d updates in all: the steps in between were kept", n, updates)
	}
}

// An idle stream is one goroutine of the relay, the one that receives: as many as for a gRPC service that does nothing
// else.
func TestIdleStreamIsOneGoroutine(t *testing.T) {
	const streams, few = 50, 5 // few are of the connection, or of the process
	// open opens streams, and returns how many goroutines there are more than before.
	open := func(m memory) (goroutines func() int) {
		conn := m.dial()
		before := runtime.NumGoroutine()
		for range streams {
			s := openDelta(t, conn)
			subscribeTo(t, s, clusterType, "a")
			receive(t, s)
		}
		return func() int { return runtime.NumGoroutine() - before }
	}
	bare := open(serveInMemory(t, func(g *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, bareServer{})
	}))()
	bare = max(bare, 2*streams) // the client's and the server's; what earlier tests have left may have ended meanwhile

	r := newRelay(t)
	go func() {
		<-r.started
		putEverywhere(r.cache, clusterType, "a", "one")
	}()
	ours := open(r.memory)
	idle := func() int { // workers, of which there are few however many streams there are
		r.server.workers.mu.Lock()
		defer r.server.workers.mu.Unlock()
		return len(r.server.workers.idle)
	}
	// A sender that has done its work ends a while after the client has its response.
	eventually(t, fmt.Sprintf("%d streams are at most %d goroutines, of a bare gRPC server there are %d", streams, bare+few, bare), func() bool { return ours()-idle() <= bare+few })
}

// bareServer answers one request and does nothing more.
type bareServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
}

func (bareServer) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
		if err := s.Send(&discoveryv3.DeltaDiscoveryResponse{}); err != nil {
			return err
		}
	}
}

// Clients of both forms connect, change their subscriptions and leave while the origin changes: all that stay have the
// newest state in the end.
func TestManyClientsAtOnce(t *testing.T) {
	const (
		clients = 40
		names   = 10
		updates = 50
		last    = "the last"
	)
	r := newRelay(t)
	conn := r.dial()
	ctx := testContext(t)
	all := make([]string, names)
	for i := range all {
		all[i] = fmt.Sprint("r", i)
	}
	put := func(content string) {
		for _, name := range all {
			putEverywhere(r.cache, endpointType, name, content)
		}
	}
	done := make(chan error, clients)
	for i := range clients {
		go func() {
			c := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
			if i%2 == 0 {
				done <- watchDelta(ctx, c, all, i%4 == 0, last)
			} else {
				done <- watchSotW(ctx, c, all, last)
			}
		}()
	}
	var origin sync.WaitGroup
	for o := range 2 {
		origin.Go(func() {
			for i := range updates {
				put(fmt.Sprint("content ", o, i))
				_ = slices.Collect(r.server.Describe())
			}
		})
	}
	origin.Wait()
	// Topics that are begun later are sent too.
	stop := make(chan struct{})
	var late sync.WaitGroup
	late.Go(func() {
		for {
			put(last)
			select {
			case <-r.started:
			case <-stop:
				return
			}
		}
	})
	for range clients {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	close(stop)
	late.Wait()
	eventually(t, "all streams are forgotten", func() bool { return r.server.Clients() == 0 })
}

// watchDelta watches names, goes away once in the middle, and returns when it
// has all with the last content.
func watchDelta(ctx context.Context, c discoveryv3.AggregatedDiscoveryServiceClient, names []string, wildcard bool, last string) error {
	if wildcard {
		names = []string{cache.Wildcard}
	}
	for _, stays := range []bool{false, true} {
		err := func() error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			s, err := c.DeltaAggregatedResources(ctx)
			if err != nil {
				return err
			}
			if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names}); err != nil {
				return err
			}
			have := map[string]bool{}
			for n := 0; len(have) < 10; n++ {
				r, err := s.Recv()
				if err != nil {
					return err
				}
				for _, res := range r.GetResources() {
					_, content := decodeContent(res.GetResource().GetValue())
					if delete(have, res.GetName()); content == last {
						have[res.GetName()] = true
					}
				}
				req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: r.GetNonce()}
				if n < 10 {
					req.ResourceNamesSubscribe = names[:1]
				}
				if err := s.Send(req); err != nil {
					return err
				}
				if !stays {
					return nil
				}
			}
			return nil
		}()
		if err != nil {
			return fmt.Errorf("delta client: %w", err)
		}
	}
	return nil
}

// watchSotW does the same, a name more with each request.
func watchSotW(ctx context.Context, c discoveryv3.AggregatedDiscoveryServiceClient, names []string, last string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.StreamAggregatedResources(ctx)
	if err != nil {
		return fmt.Errorf("SotW client: %w", err)
	}
	have := map[string]bool{}
	var version, nonce string
	for n := 1; len(have) < len(names); n = min(n+1, len(names)) {
		req := &discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names[:n], VersionInfo: version, ResponseNonce: nonce}
		if err := s.Send(req); err != nil {
			return fmt.Errorf("SotW client: %w", err)
		}
		r, err := s.Recv()
		if err != nil {
			return fmt.Errorf("SotW client: %w", err)
		}
		version, nonce = r.GetVersionInfo(), r.GetNonce()
		for _, res := range r.GetResources() {
			name, content := decodeContent(res.GetValue())
			if delete(have, name); content == last {
				have[name] = true
			}
		}
	}
	return nil
}

// subscriptions returns how many there are on all streams.
func (r *relay) subscriptions() int {
	n := 0
	for c := range r.server.Describe() {
		for _, s := range c.Types {
			n += s.Subscriptions
		}
	}
	return n
}

type deltaStream = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient

func openDelta(t *testing.T, conn *grpc.ClientConn, o ...grpc.CallOption) deltaStream {
	t.Helper()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(testContext(t), o...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func subscribeTo(t *testing.T, s deltaStream, typeURL string, names ...string) {
	t.Helper()
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names}); err != nil {
		t.Fatal(err)
	}
}

// receive returns the contents of the next response, by name.
func receive(t *testing.T, s deltaStream) map[string]string {
	t.Helper()
	r, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	contents := map[string]string{}
	for _, res := range r.GetResources() {
		_, contents[res.GetName()] = decodeContent(res.GetResource().GetValue())
	}
	return contents
}
