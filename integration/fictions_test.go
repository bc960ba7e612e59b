package integration

// What clients make up, by the hundred thousand and over many connections: what the control plane
// is asked, what the relay keeps and writes, what those who did it are told, and what others notice.

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// fictionCount returns how many of each are made up. With the race detector it is for races only.
func fictionCount() int {
	if raceDetector() {
		return 4_000
	}
	return 100_000
}

// The limits of the relay, which are low, so that all fictions exceed them.
const (
	fictionScopes   = 300
	fictionTypes    = 200
	fictionNames    = 20_000
	fictionRequests = 50 // a second
	// fictionBegun are the scopes that one identity may begin at once, and in some minutes.
	fictionBegun = 1000 + 3*fictionScopes
)

// fiction is something that clients make up.
type fiction struct {
	name string
	// act makes up n of it, counts what its clients are told, and lets them stay until ctx ends.
	act func(ctx context.Context, t *testing.T, at *target, n int, o *told)
	// refused is the limit that holds it; empty if it costs nothing that needs one.
	refused string
	// streams is how many the control plane may see of it at once, and opened, if not 0, in all.
	streams, opened int
}

var fictions = []fiction{
	{"types", fictionalTypes("one"), "types_per_identity", 1, 0},
	{"types for which the control plane ends streams", fictionalTypes("canary"), "types_per_identity", 0, 0},
	{"authorities under a pattern", fictionalAuthorities, "scopes_per_identity", fictionScopes, 0},
	{"authorities that come and go", fictionalChurn, "scopes_per_identity", fictionScopes, fictionBegun},
	{"dynamic parameters", fictionalParameters, "scopes_per_identity", fictionScopes, 0},
	{"partitions", fictionalPartitions, "scopes_per_identity", fictionScopes, 0},
	{"relays", fictionalRelays, "", 1, 0},
	{"names", fictionalNames, "subscriptions_per_identity", 1, 0},
	{"REST requests", fictionalRequests, "requests_per_second_per_identity", 0, 0},
}

// More than so many of these is not bounded.
const (
	mostLines  = 600 // of the log, for each fiction
	mostSeries = 10  // of metrics, more than before
	mostHeld   = 256 << 20
)

// TestWhatClientsMakeUpIsBounded holds that it costs what the limits say, over however many
// connections: streams and types at the control plane, memory, log lines and metrics. Who did it
// is told, and the canary notices nothing.
func TestWhatClientsMakeUpIsBounded(t *testing.T) {
	t.Parallel()
	cp := startControlPlane(t, delta)
	counting := startCountingPlane(t)
	config := fictionConfig(cp.address, counting.address)
	at := attackedRelay(t, config)
	watch := startCanary(t, cp, at.relay, startRelay(t, config))
	watch.updates(t, 10)
	for _, f := range fictions { // so that the relay has what it makes when it is first used, and its goroutines
		at.imagine(t, f, watch)
	}
	before, series := 0, at.series(t)
	if !raceDetector() {
		before = at.settledLive(t)
	}
	for _, f := range fictions {
		t.Run(f.name, func(t *testing.T) {
			refused := at.exceeded(t, f.refused)
			counting.reset(t)
			lines := at.lines()
			is := at.imagine(t, f, watch)
			seen := counting.report()
			for again, tries := is, 1; !raceDetector(); tries++ {
				most := 2*again.alone + mostSlower
				if again.attacked <= most {
					break
				}
				if tries == mostTries {
					t.Errorf("the canary is served in %v, and in %v without the fiction: want %v at most", again.attacked, again.alone, most)
					break
				}
				again = at.imagine(t, f, watch)
			}
			// The scopes that nobody uses any more stay for a while.
			if f.streams > 0 && seen.most > f.streams+idleFictions {
				t.Errorf("the control plane has %d streams at once, want %d at most", seen.most, f.streams+idleFictions)
			}
			if f.opened > 0 && seen.opened > f.opened {
				t.Errorf("the control plane has seen %d streams, want %d at most", seen.opened, f.opened)
			}
			// Types that are refused come again on other streams.
			if most := fictionCount() / 8; len(seen.types) > most && !raceDetector() {
				t.Errorf("the control plane is asked for %d types, want %d at most", len(seen.types), most)
			}
			if f.refused != "" && !raceDetector() && (at.exceeded(t, f.refused) == refused || is.told.refused.Load() == 0 || !strings.Contains(is.told.why(), f.refused)) {
				t.Errorf("those who did it are told %v, want a refusal that names limits.%s", &is.told, f.refused)
			}
			if n := at.lines() - lines; n > mostLines {
				t.Errorf("the relay has logged %d lines", n)
			}
			if is.series > series+mostSeries {
				t.Errorf("there are %d metrics, and were %d", is.series, series)
			}
			t.Logf("told %v; the control plane saw %d streams (%d at once), %d requests, %d types; %d lines; %d metrics; live %d KiB; canary %v, alone %v",
				&is.told, seen.opened, seen.most, seen.requests, len(seen.types), at.lines()-lines, is.series, is.live>>10, is.attacked, is.alone)
			if !raceDetector() {
				if is.live > before+mostHeld {
					t.Errorf("the live heap is %d KiB meanwhile, and was %d KiB", is.live>>10, before>>10)
				}
				at.awaitLive(t, before)
			}
		})
	}
	watch.updates(t, 10)
}

const idleFictions = 20

func fictionConfig(plane, counting string) string {
	limits := fmt.Sprintf("    limits: {scopes_per_identity: %d, types_per_identity: %d, subscriptions_per_identity: %d, requests_per_second_per_identity: %d}\n", fictionScopes, fictionTypes, fictionNames, fictionRequests)
	return `
listeners:
  - address: 127.0.0.1:0
` + limits + `
  - address: 127.0.0.1:0
` + limits + `
  - address: 127.0.0.1:0
    protocol: rest
    long_poll: 1ms
` + limits + `
admin:
  address: 127.0.0.1:0
node:
  id: the-relay
` + servedBy(plane, "delta") + fmt.Sprintf(`
  - name: "*.made.example.com"
    servers: [{address: %[1]q, protocol: delta}]
  - name: made.example.com
    servers: [{address: %[1]q, protocol: delta}]
`, counting) + fmt.Sprintf(`
old_style_names:
  - {when: node.cluster == "one", authority: made.example.com}
  - {when: node.cluster == "partitions", authority: made.example.com, partition: node.id}
  - authority: cp.example.com
cache: {linger: 200ms, idle_scopes: %d}
`, idleFictions)
}

// imagined is what a fiction came to.
type imagined struct {
	told            told
	series, live    int
	attacked, alone time.Duration // medians of the canary's times
}

// imagine has clients make up a fiction while the canary is watched, and then leave.
func (at *target) imagine(t *testing.T, f fiction, watch *canary) (is *imagined) {
	t.Helper()
	is = &imagined{}
	// Not a deadline: gRPC would send it to the relay, which would end the streams.
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	acted := make(chan struct{})
	go func() {
		defer close(acted)
		defer stop()
		f.act(ctx, t, at, fictionCount(), &is.told)
		<-time.After(attackedFor()) // its clients are still there
	}()
	seen := watch.watch(watching, t)
	<-acted
	is.series, is.live = at.series(t), at.metric(t, liveHeap)
	is.attacked, is.alone = seen.medians()
	leave()
	is.told.reading.Wait()
	return is
}

// series is the number of metrics.
func (at *target) series(t *testing.T) (n int) {
	t.Helper()
	for line := range strings.Lines(fetch(t, "http://"+at.relay.admin+"/metrics")) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}

// lines is the number of lines that the relay has logged.
func (at *target) lines() int { return strings.Count(at.relay.stderr.String(), "\n") }

// told counts what clients are told.
type told struct {
	reading        sync.WaitGroup // of streams
	refused, other atomic.Int64
	last           atomic.Pointer[string] // refusal
}

func (o *told) note(err error) {
	switch status.Code(err) {
	case codes.OK, codes.Canceled:
	case codes.ResourceExhausted:
		o.refused.Add(1)
		o.last.Store(new(status.Convert(err).Message()))
	default:
		o.other.Add(1)
	}
}

func (o *told) why() string {
	if last := o.last.Load(); last != nil {
		return *last
	}
	return ""
}

// String implements fmt.Stringer.
func (o *told) String() string {
	return fmt.Sprintf("%d refusals (%.120s) and %d other errors", o.refused.Load(), o.why(), o.other.Load())
}

// read reads a stream until it ends.
func (o *told) read(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) {
	for {
		m, err := s.Recv()
		if err != nil {
			o.note(err)
			return
		}
		for _, e := range m.GetResourceErrors() {
			o.note(status.ErrorProto(e.GetErrorDetail()))
		}
	}
}

// saidFor bounds how long something is made up: who is refused is read more slowly.
const saidFor = 3 * time.Second

// say sends requests on so many streams, over so many connections. Each stream is read until ctx
// ends or it does.
func (at *target) say(ctx context.Context, t *testing.T, o *told, conns, streams int, reqs func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest)) {
	var saying sync.WaitGroup
	began := time.Now()
	for i := range conns {
		cc := at.dial(ctx, t)
		saying.Go(func() {
			for j := i; j < streams && ctx.Err() == nil && time.Since(began) < saidFor; j += conns {
				ctx, all := reqs(ctx, j)
				if s := at.send(ctx, t, cc, all...); s != nil {
					o.reading.Go(func() { o.read(s) })
				}
			}
		})
	}
	saying.Wait()
	at.settle(ctx, o)
}

// settle waits until nothing more has been told for a while.
func (at *target) settle(ctx context.Context, o *told) {
	pace := time.NewTicker(300 * time.Millisecond)
	defer pace.Stop()
	for last := int64(-1); ctx.Err() == nil; <-pace.C {
		now := o.refused.Load() + o.other.Load()
		if now == last {
			return
		}
		last = now
	}
}

func fictionalTypes(cluster string) func(context.Context, *testing.T, *target, int, *told) {
	const perStream = 64
	return func(ctx context.Context, t *testing.T, at *target, n int, o *told) {
		at.say(ctx, t, o, 50, n/perStream, func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
			var reqs []*discoveryv3.DeltaDiscoveryRequest
			for i := range perStream {
				reqs = append(reqs, ask(fmt.Sprintf("made.up/%d-%d", stream, i), "x"))
			}
			reqs[0].Node = &corev3.Node{Id: "made-up", Cluster: cluster}
			return ctx, reqs
		})
	}
}

func fictionalAuthorities(ctx context.Context, t *testing.T, at *target, n int, o *told) {
	const perStream = 100
	at.say(ctx, t, o, 100, n/perStream, func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
		req := ask(clusterType)
		for i := range perStream {
			req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, fmt.Sprintf("xdstp://a%d-%d.made.example.com/envoy.config.cluster.v3.Cluster/x", stream, i))
		}
		return ctx, []*discoveryv3.DeltaDiscoveryRequest{req}
	})
}

// fictionalChurn are authorities of which few are in use at once.
func fictionalChurn(ctx context.Context, t *testing.T, at *target, n int, o *told) {
	const streams, atOnce = 10, 30
	at.say(ctx, t, o, streams, streams, func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
		var reqs []*discoveryv3.DeltaDiscoveryRequest
		for i := range n / streams / atOnce {
			begin := ask(clusterType)
			for j := range atOnce {
				begin.ResourceNamesSubscribe = append(begin.ResourceNamesSubscribe, fmt.Sprintf("xdstp://c%d-%d-%d.made.example.com/envoy.config.cluster.v3.Cluster/x", stream, i, j))
			}
			reqs = append(reqs, begin, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesUnsubscribe: begin.ResourceNamesSubscribe})
		}
		return ctx, reqs
	})
}

func fictionalParameters(ctx context.Context, t *testing.T, at *target, n int, o *told) {
	const perType = 16 // on one stream
	words := []string{clusterType, endpointType, listenerType, routeType}
	at.say(ctx, t, o, 50, n/perType/len(words), func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
		var reqs []*discoveryv3.DeltaDiscoveryRequest
		for _, typeURL := range words {
			req := ask(typeURL)
			for i := range perType {
				req.ResourceLocatorsSubscribe = append(req.ResourceLocatorsSubscribe, &discoveryv3.ResourceLocator{
					Name:              "xdstp://made.example.com/" + strings.TrimPrefix(typeURL, "type.googleapis.com/") + "/x",
					DynamicParameters: map[string]string{"n": fmt.Sprint(typeURL, stream, i)},
				})
			}
			reqs = append(reqs, req)
		}
		return ctx, reqs
	})
}

// fictionalPartitions opens the next stream of a connection when it is known what became of the
// last one: who is refused is read more slowly, and so makes up fewer than n.
func fictionalPartitions(ctx context.Context, t *testing.T, at *target, n int, o *told) {
	const conns = 20
	var saying sync.WaitGroup
	began := time.Now()
	for i := range conns {
		cc := at.dial(ctx, t)
		saying.Go(func() {
			for j := i; j < n && ctx.Err() == nil && time.Since(began) < saidFor; j += conns {
				req := ask(clusterType, "x")
				req.Node = &corev3.Node{Id: fmt.Sprint("made-up-", j), Cluster: "partitions"}
				s := at.send(ctx, t, cc, req)
				if s == nil {
					return
				}
				ended := make(chan struct{})
				o.reading.Go(func() {
					defer close(ended)
					o.read(s)
				})
				select {
				case <-ended:
				case <-time.After(20 * time.Millisecond): // the partition is there
				}
			}
		})
	}
	saying.Wait()
}

func fictionalRelays(ctx context.Context, t *testing.T, at *target, n int, o *told) {
	const perStream = 64
	at.say(ctx, t, o, 50, n/perStream, func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
		ids := make([]string, perStream)
		for i := range ids {
			ids[i] = fmt.Sprintf("%d-%d-%s", stream, i, strings.Repeat("r", 200))
		}
		req := ask(clusterType, "x")
		req.Node = &corev3.Node{Id: "made-up", Cluster: "one"}
		return metadata.AppendToOutgoingContext(ctx, "x-xds-relay-chain", strings.Join(ids, ",")), []*discoveryv3.DeltaDiscoveryRequest{req}
	})
}

func fictionalNames(ctx context.Context, t *testing.T, at *target, n int, o *told) {
	const streams = 50
	at.say(ctx, t, o, streams, streams, func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
		req := ask(clusterType)
		for i := range n / streams {
			req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, fmt.Sprintf("made-up-%d-%d", stream, i))
		}
		req.Node = &corev3.Node{Id: "made-up", Cluster: "one"}
		return ctx, []*discoveryv3.DeltaDiscoveryRequest{req}
	})
}

// fictionalRequests sends requests over REST, each on a connection of its own, for a while.
func fictionalRequests(ctx context.Context, t *testing.T, at *target, _ int, o *told) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	time.AfterFunc(2*attackedFor(), end)
	var answered atomic.Int64
	began := time.Now()
	again(ctx, 128, func(int) {
		transport := &http.Transport{DisableKeepAlives: true}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at.rest+"/v3/discovery:clusters", strings.NewReader(`{"node":{"id":"made-up","cluster":"one"},"resource_names":["x"]}`))
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return // ctx has ended
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			o.note(status.Error(codes.ResourceExhausted, "limits.requests_per_second_per_identity"))
			return
		}
		answered.Add(1)
	})
	if most := fictionRequests * (5 + 2 + int64(time.Since(began)/time.Second)); answered.Load() > most {
		t.Errorf("%d requests are answered, want %d at most", answered.Load(), most)
	}
}

// countingPlane is a control plane that answers nothing, and counts what it is asked.
type countingPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	address string

	mu   sync.Mutex
	open int
	seen counted
}

// counted is what a countingPlane has seen.
type counted struct {
	opened, most, requests int // most is of streams at once
	types                  []string
}

func startCountingPlane(t *testing.T) *countingPlane {
	t.Helper()
	port := openPort(t)
	p := &countingPlane{address: port.address}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, p)
	serve(s, port.listen())
	t.Cleanup(s.Stop)
	return p
}

// DeltaAggregatedResources implements the service in delta.
func (p *countingPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	count := func(f func()) {
		p.mu.Lock()
		defer p.mu.Unlock()
		f()
	}
	count(func() {
		p.open++
		p.seen.opened++
		p.seen.most = max(p.seen.most, p.open)
	})
	defer count(func() { p.open-- })
	for {
		req, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		count(func() {
			p.seen.requests++
			if at, has := slices.BinarySearch(p.seen.types, req.GetTypeUrl()); !has {
				p.seen.types = slices.Insert(p.seen.types, at, req.GetTypeUrl())
			}
		})
	}
}

// reset begins to count anew, when the streams of scopes have ended that nobody uses any more.
func (p *countingPlane) reset(t *testing.T) {
	t.Helper()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for began := time.Now(); ; <-pace.C {
		p.mu.Lock()
		open := p.open
		p.seen = counted{most: open}
		p.mu.Unlock()
		if open <= idleFictions {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("%d streams are still open that nobody needs", open)
		}
	}
}

func (p *countingPlane) report() counted {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}
