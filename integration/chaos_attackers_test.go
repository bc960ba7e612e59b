package integration

// Hostile clients of each kind in the chaos: one attack after another, on the relay that serves all others.

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
)

// soakAttacks are the attacks that the chaos has besides those of TestNoClientHarmsAnother: more of the kinds that have
// tests of their own, and each in a second.
var soakAttacks = []attack{
	{name: "the relay's own id in a chain", act: ownChain},
	{name: "names with the same alternative", act: sharedAlternatives},
	{name: "many streams that reject everything", act: rejectEverything},
	{name: "a flood of streams", act: floodOfStreams},
	{name: "load of made-up clusters", act: madeUpLoad},
	{name: "requests that never end", act: func(ctx context.Context, _ *testing.T, at *target) {
		again(ctx, 10, func(i int) { sendUnfinished(ctx, at, i) })
	}},
	{name: "slow bodies on the admin listener", act: slowAdminBodies},
	{name: "CSDS calls that nobody reads", act: slowStatus},
}

// attackable returns the configuration of a relay in the chaos that is attacked, too. The attackers have listeners with
// the limits that they reach, because who reaches those of connections and streams keeps all others from a listener; and
// authorities.
func attackable(config, canary, quiet, cert, key string) string {
	attacked := attackedConfig(canary, quiet, cert, key)
	section := func(from, to string) string {
		_, rest, _ := strings.Cut(attacked, "\n"+from+"\n")
		section, _, _ := strings.Cut(rest, "\n"+to+"\n")
		return section + "\n"
	}
	config = strings.Replace(config, "listeners:\n  - address: 127.0.0.1:0\n", "listeners:\n  - address: 127.0.0.1:0\n    csds: true\n"+section("listeners:", "admin:"), 1)
	config = strings.Replace(config, "\nauthorities:\n", "\nauthorities:\n"+section("authorities:", "old_style_names:")+
		"  - name: down.example.com\n    failover: {policy: unreachable, grace: 1ms}\n    servers: [{address: '127.0.0.1:1'}]\n", 1)
	// The attackers' rules come last: one of them is for every client.
	return strings.Replace(config, "views:\n", section("old_style_names:", "views:")+"views:\n"+section("views:", "cache: {linger: 200ms}"), 1)
}

// chaosAttackers attack the relays of the chaos.
type chaosAttackers struct {
	relays  *relays
	canary  *controlPlane
	control *relay
	tls     *tls.Config
	config  string
	seen    atomic.Int64 // updates of canaries
	rounds  atomic.Int64 // attacks
	reloads atomic.Int64
}

// run attacks the current relay now and then until ctx ends. The relay is not killed meanwhile.
func (a *chaosAttackers) run(ctx context.Context, t *testing.T, r *rand.Rand) {
	all := allAttacks()
	const between = 3 * time.Second
	for next := len(all); pause(ctx, r, between); next++ {
		if next >= len(all) {
			next = 0
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		}
		a.relays.spared.RLock()
		if ctx.Err() == nil {
			a.attack(t, all[next])
		}
		a.relays.spared.RUnlock()
	}
}

func allAttacks() []attack { return append(append([]attack{}, attacks...), soakAttacks...) }

// target returns the current relay.
func (a *chaosAttackers) target(t *testing.T) *target {
	a.relays.mu.Lock()
	now := a.relays.now
	a.relays.mu.Unlock()
	at := &target{relay: now, metrics: metricsClient(t), tls: a.tls, rest: now.awaitLog(t, `msg="serving clients" address=(\S+) protocol=rest`)}
	listeners := regexp.MustCompile(`msg="serving clients" address=(\S+) protocol=grpc`).FindAllStringSubmatch(now.stderr.String(), -1)
	if len(listeners) != 3 {
		t.Fatalf("the relay has %d gRPC listeners", len(listeners))
	}
	at.grpc, at.reserved = listeners[1][1], listeners[2][1]
	return at
}

// attack runs an attack once. Meanwhile another client sees all updates of a resource.
func (a *chaosAttackers) attack(t *testing.T, act attack) {
	const mostPort = 60_000 // the version is a port
	t.Run("a hostile client with "+act.name, func(t *testing.T) {
		at := a.target(t)
		watch := startCanary(t, a.canary, at.relay, a.control)
		watch.version = uint32(a.seen.Load() % mostPort)
		watch.updates(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(attackedFor(), cancel)
		var attacking sync.WaitGroup
		attacking.Go(func() { act.act(ctx, t, at) })
		seen := watch.watch(ctx, t)
		attacking.Wait()
		a.seen.Add(1 + int64(len(seen)))
		a.rounds.Add(1)
	})
}

// reload changes the configuration of the current relay now and then until ctx ends: an authority comes, and goes.
func (a *chaosAttackers) reload(ctx context.Context, t *testing.T, r *rand.Rand) {
	const between = 4 * time.Second
	more := strings.Replace(a.config, "\nauthorities:\n", "\nauthorities:\n  - {name: reloaded.example.com, servers: [{address: '127.0.0.1:1'}]}\n", 1)
	for pause(ctx, r, between) {
		a.relays.spared.RLock()
		if ctx.Err() == nil {
			a.relays.mu.Lock()
			now := a.relays.now
			a.relays.mu.Unlock()
			now.reload(t, more)
			now.reload(t, a.config)
			a.reloads.Add(2)
		}
		a.relays.spared.RUnlock()
	}
}

// settle attacks the last relay in all ways, and checks that its memory comes back.
func (a *chaosAttackers) settle(t *testing.T) {
	at := a.target(t)
	before := at.settledLive(t)
	for _, act := range allAttacks() {
		a.attack(t, act)
	}
	// The relay has never been attacked before, and Go keeps the descriptors of goroutines.
	const more = 16 << 20
	most := 2*before + more
	var now int
	within(t, 2*liveWithin, "the memory is back", func() error {
		if now = at.metric(t, liveHeap); now > most {
			return fmt.Errorf("the live heap is %d KiB, and was %d KiB", now>>10, before>>10)
		}
		return nil
	})
	t.Logf("the live heap is %d KiB after all attacks, and was %d KiB; %d attacks, %d reloads; the canary saw all of its %d updates",
		now>>10, before>>10, a.rounds.Load(), a.reloads.Load(), a.seen.Load())
}

func ownChain(ctx context.Context, t *testing.T, at *target) {
	conn := at.dial(ctx, t)
	again(ctx, 2, func(int) {
		ctx := metadata.AppendToOutgoingContext(ctx, "x-xds-relay-chain", "the-relay,root-1,evil")
		if s := at.send(ctx, t, conn, ask(endpointType, canaryName)); s != nil {
			_, _ = s.Recv() // why it is refused
		}
	})
}

func sharedAlternatives(ctx context.Context, t *testing.T, at *target) {
	const begins = "envoy.config.endpoint.v3.ClusterLoadAssignment/"
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("xdstp://down.example.com/%s%d#alt=xdstp://cp.example.com/%sshared", begins, i, begins)
	}
	at.send(ctx, t, at.dial(ctx, t), ask(endpointType, names...))
	<-ctx.Done()
}

func rejectEverything(ctx context.Context, t *testing.T, at *target) {
	conn := at.dial(ctx, t)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			req := ask(endpointType, canaryName)
			req.Node = &corev3.Node{Id: fmt.Sprint("made-up-", i)}
			s := at.send(ctx, t, conn, req)
			for s != nil {
				r, err := s.Recv()
				if err != nil || s.Send(&discoveryv3.DeltaDiscoveryRequest{
					TypeUrl: endpointType, ResponseNonce: r.GetNonce(),
					ErrorDetail: &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: "I want none of it"},
				}) != nil {
					return
				}
			}
		})
	}
	all.Wait()
}

func floodOfStreams(ctx context.Context, t *testing.T, at *target) {
	var streams sync.WaitGroup
	for range floodConns {
		conn := at.dial(ctx, t)
		streams.Go(func() { at.openStreams(ctx, t, conn, floodPerSecond/floodConns, &streams) })
	}
	streams.Wait()
}

func madeUpLoad(ctx context.Context, t *testing.T, at *target) {
	s, err := lrsv3.NewLoadReportingServiceClient(at.dial(ctx, t)).StreamLoadStats(ctx)
	if err != nil {
		return
	}
	for n := 0; ctx.Err() == nil; n++ {
		r := &lrsv3.LoadStatsRequest{Node: &corev3.Node{Id: "made-up", ClientFeatures: []string{"envoy.lrs.supports_send_all_clusters"}}}
		for i := range 1000 {
			r.ClusterStats = append(r.ClusterStats, &endpointv3.ClusterStats{
				ClusterName: fmt.Sprint("made-up-", n, "-", i), LoadReportInterval: durationpb.New(time.Second), TotalDroppedRequests: 1,
			})
		}
		if s.Send(r) != nil {
			return
		}
	}
}

func slowAdminBodies(ctx context.Context, t *testing.T, at *target) {
	var dialer net.Dialer
	for range 130 {
		conn, err := dialer.DialContext(ctx, "tcp", at.relay.admin)
		if err != nil {
			break
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		if _, err := fmt.Fprintf(conn, "POST /reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx"); err != nil {
			break
		}
	}
	if _, err := readyStatus(at.relay); err != nil && ctx.Err() == nil {
		t.Errorf("/readyz: %v", err)
	}
	<-ctx.Done()
}

func slowStatus(ctx context.Context, t *testing.T, at *target) {
	conn := connect(t, at.relay.address) // the other listeners do not have it
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	for range 20 {
		s, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).StreamClientStatus(ctx)
		if err != nil {
			return
		}
		for range 100 {
			if s.Send(&statusv3.ClientStatusRequest{}) != nil {
				break
			}
		}
	}
	<-ctx.Done()
}
