package integration

// Clients invent names, types and parameters by the hundred thousand, over many connections. The tests
// check what the relay requests from the control plane, what it keeps and logs, what it answers, and
// whether other clients notice.

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
	// act invents n of it, counts the answers to its clients, and keeps them connected until ctx ends.
	act func(ctx context.Context, t *testing.T, at *target, n int, o *answers)
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

// Above these numbers, something is not bounded.
const (
	mostLines  = 600 // of the log, for each fiction
	mostSeries = 10  // of metrics, more than before
	mostHeld   = 256 << 20
)

// TestWhatClientsMakeUpIsBounded checks that inventions cost no more than the limits allow, whatever the
// number of connections: streams and types at the control plane, memory, log lines and metrics. The
// clients receive a refusal, and the canary notices nothing.
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
			if f.refused != "" && !raceDetector() && (at.exceeded(t, f.refused) == refused || !is.answers.named(f.refused)) {
				t.Errorf("the clients received %v, want a refusal that names limits.%s", &is.answers, f.refused)
			}
			if n := at.lines() - lines; n > mostLines {
				t.Errorf("the relay has logged %d lines", n)
			}
			if is.series > series+mostSeries {
				t.Errorf("there are %d metrics, and were %d", is.series, series)
			}
			t.Logf("told %v; the control plane saw %d streams (%d at once), %d requests, %d types; %d lines; %d metrics; live %d KiB; canary %v, alone %v",
				&is.answers, seen.opened, seen.most, seen.requests, len(seen.types), at.lines()-lines, is.series, is.live>>10, is.attacked, is.alone)
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
	answers         answers
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
		f.act(ctx, t, at, fictionCount(), &is.answers)
		<-time.After(attackedFor()) // its clients are still there
	}()
	seen := watch.watch(watching, t)
	<-acted
	is.series, is.live = at.series(t), at.metric(t, liveHeap)
	is.attacked, is.alone = seen.medians()
	leave()
	is.answers.reading.Wait()
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

// answers counts what clients are sent.
type answers struct {
	reading        sync.WaitGroup // of streams
	refused, other atomic.Int64
	limits         sync.Map // that refusals have named, each with the words of one
}

// limitNamed finds the limit that a refusal names: if two are exceeded, the refusal names one of them.
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

// named says that a refusal has named a limit.
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

// saidFor bounds how long something is made up: who is refused is read more slowly.
const saidFor = 3 * time.Second

// say sends requests on so many streams, over so many connections. Each stream is read until ctx
// ends or it does.
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

// settle waits until no more answers have come for a while.
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
