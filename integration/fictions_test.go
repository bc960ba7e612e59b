package integration

// Clients invent names, types and parameters by the hundred thousand, over many connections. The test checks
// the relay's requests to the control plane, its memory and logs, its answers, and the delay of other
// clients.

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fictionCount returns how many of each fiction the clients make up. With the race detector it is small,
// because the test then only looks for races.
func fictionCount() int {
	if raceDetector() {
		return 4_000
	}
	return 100_000
}

// The limits of the relay. They are so low that all fictions exceed them.
const (
	fictionScopes   = 300
	fictionTypes    = 200
	fictionNames    = 20_000
	fictionRequests = 50 // per second
	// fictionBegun is how many new scopes one identity may begin in total: at once, and in a few minutes
	// after that.
	fictionBegun = 1000 + 3*fictionScopes
)

// fiction is a kind of thing that clients make up.
type fiction struct {
	name string
	// act has clients make up n of them, counts the answers, and keeps the clients connected until ctx ends.
	act func(ctx context.Context, t *testing.T, at *target, n int, o *answers)
	// refused is the limit that the fiction exceeds. It is empty if no limit is necessary.
	refused string
	// streams is the most streams that the control plane may see at the same time because of the fiction, and
	// opened, if it is not 0, the most in total.
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

// The test takes costs above these numbers for unbounded.
const (
	mostLines  = 600 // log lines for each fiction
	mostSeries = 10  // additional time series in the metrics
	mostHeld   = 256 << 20
)

// TestWhatClientsMakeUpIsBounded checks that fictions cost no more than the limits allow, whatever the number
// of connections: streams and types at the control plane, memory, log lines and metrics. The relay refuses
// the clients, and the canary's updates are not late.
func TestWhatClientsMakeUpIsBounded(t *testing.T) {
	long(t, "clients make up nine kinds of things by the thousand; TestOnlyTheClientOverALimitIsRefused and the tests of downstream have the limits")
	t.Parallel()
	cp := startControlPlane(t, delta)
	counting := startCountingPlane(t)
	config := fictionConfig(cp.address, counting.address)
	at := attackedRelay(t, config)
	watch := startCanary(t, cp, at.relay, startRelay(t, config))
	watch.updates(t, 10)
	for _, f := range fictions { // so that the baseline has everything that the relay allocates on first use
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
					t.Errorf("the canary's updates took %v, and %v without the fiction: want at most %v", again.attacked, again.alone, most)
					break
				}
				again = at.imagine(t, f, watch)
			}
			// The relay keeps some unused scopes for a while.
			if f.streams > 0 && seen.most > f.streams+idleFictions {
				t.Errorf("the control plane had %d streams at the same time, want at most %d", seen.most, f.streams+idleFictions)
			}
			if f.opened > 0 && seen.opened > f.opened {
				t.Errorf("the control plane had %d streams in total, want at most %d", seen.opened, f.opened)
			}
			// A type that the relay refused on one stream may come again on another.
			if most := fictionCount() / 8; len(seen.types) > most && !raceDetector() {
				t.Errorf("the control plane received requests for %d types, want at most %d", len(seen.types), most)
			}
			if f.refused != "" && !raceDetector() && (at.exceeded(t, f.refused) == refused || !is.answers.named(f.refused)) {
				t.Errorf("the clients received %v, want a refusal that names limits.%s", &is.answers, f.refused)
			}
			if n := at.lines() - lines; n > mostLines {
				t.Errorf("the relay has logged %d lines, want at most %d", n, mostLines)
			}
			if is.series > series+mostSeries {
				t.Errorf("the metrics have %d time series, and had %d before", is.series, series)
			}
			t.Logf("the clients received %v; the control plane saw %d streams (%d at once), %d requests, %d types; %d lines; %d time series; live heap %d KiB; canary %v, alone %v",
				&is.answers, seen.opened, seen.most, seen.requests, len(seen.types), at.lines()-lines, is.series, is.live>>10, is.attacked, is.alone)
			if !raceDetector() {
				if is.live > before+mostHeld {
					t.Errorf("the live heap is %d KiB during the fiction, and was %d KiB before", is.live>>10, before>>10)
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

// imagined has the effects of a fiction.
type imagined struct {
	answers         answers
	series, live    int
	attacked, alone time.Duration // medians of the canary's times
}

// imagine has clients make up a fiction, measures the canary's updates meanwhile, and disconnects the
// clients.
func (at *target) imagine(t *testing.T, f fiction, watch *canary) (is *imagined) {
	t.Helper()
	is = &imagined{}
	// Not a deadline: gRPC would send the deadline to the relay, and the relay would end the streams.
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	acted := make(chan struct{})
	go func() {
		defer close(acted)
		defer stop()
		f.act(ctx, t, at, fictionCount(), &is.answers)
		<-time.After(attackedFor()) // while the clients are still connected
	}()
	seen := watch.watch(watching, t)
	<-acted
	is.series, is.live = at.series(t), at.metric(t, liveHeap)
	is.attacked, is.alone = seen.medians()
	leave()
	is.answers.reading.Wait()
	return is
}

// series returns the number of time series in the metrics.
func (at *target) series(t *testing.T) (n int) {
	t.Helper()
	for line := range strings.Lines(fetch(t, "http://"+at.relay.admin+"/metrics")) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}

// lines returns the number of lines that the relay has logged.
func (at *target) lines() int { return strings.Count(at.relay.stderr.String(), "\n") }

// answers counts the errors that clients receive.
type answers struct {
	reading        sync.WaitGroup // of streams
	refused, other atomic.Int64
	limits         sync.Map // the limits that refusals have named, each with one error message
}

// limitNamed finds the limit in the message of a refusal. A refusal names one limit, even if the client
// exceeds two.
var limitNamed = regexp.MustCompile(`limits\.(\w+)`)

func (o *answers) note(err error) {
	switch status.Code(err) {
	case codes.OK, codes.Canceled:
	case codes.ResourceExhausted:
		o.refused.Add(1)
		words := status.Convert(err).Message()
		if named := limitNamed.FindStringSubmatch(words); named != nil {
			o.limits.Store(named[1], words)
		}
	default:
		o.other.Add(1)
	}
}

// named reports whether a refusal has named a limit.
func (o *answers) named(limit string) bool {
	_, is := o.limits.Load(limit)
	return is
}

// String implements fmt.Stringer.
func (o *answers) String() string {
	var why []string
	o.limits.Range(func(_, words any) bool {
		why = append(why, fmt.Sprintf("%.120s", words))
		return true
	})
	return fmt.Sprintf("%d refusals %q and %d other errors", o.refused.Load(), why, o.other.Load())
}

// read reads a stream until it ends.
func (o *answers) read(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) {
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

// saidFor bounds the time for a fiction, because the relay reads more slowly from clients that it refuses.
const saidFor = 3 * time.Second

// say opens streams over conns connections, and sends the requests reqs on each. It reads each stream until
// ctx or the stream ends.
func (at *target) say(ctx context.Context, t *testing.T, o *answers, conns, streams int, reqs func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest)) {
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

// settle waits until no error has come for a while.
func (at *target) settle(ctx context.Context, o *answers) {
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
