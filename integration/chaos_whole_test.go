package integration

// Clients by Envoy's rules. They apply a response as a whole: its removals first, then one Listener after another, and
// they refuse a Listener whose address another one has.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// heldListener is a Listener that a client has. stream is the number of the stream on which it was sent last.
type heldListener struct {
	listenerState
	version string
	stream  int
}

// listenersHeld is the state of a client.
type listenersHeld struct {
	listeners map[string]heldListener
	stream    int // the number of the stream
	// refused has the Listeners whose newest state on this stream the client refused.
	refused map[string]bool
	// refusedLast has the states at unused ports that the client has refused.
	refusedLast map[string]listenerState
	// byAddress is how often the client refused a Listener whose address another one had.
	byAddress int
}

// listenerClient is a client that keeps what it has when its stream ends.
type listenerClient struct {
	watched[listenersHeld]
	id     string
	form   form
	plane  *listenerPlane
	relays *relays
	rand   *rand.Rand
	// comesBack says that the client has no stream while the Listeners move to unused ports.
	comesBack bool
	past      chaosPast
}

// live connects again and again until ctx ends. When quiet is closed, it keeps its stream, or has none until moved is closed.
func (c *listenerClient) live(ctx context.Context, quiet, moved <-chan struct{}) {
	const breath = 50 * time.Millisecond
	for ctx.Err() == nil {
		if isClosed(quiet) && c.comesBack {
			select {
			case <-moved:
				c.comesBack = false
			case <-ctx.Done():
			}
		}
		c.connect(ctx, quiet)
		pause(ctx, c.rand, breath)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (c *listenerClient) report(format string, args ...any) {
	c.plane.truth.reportOf(c.id, &c.past, format, args...)
}

// connect opens a stream, and returns when it ends.
func (c *listenerClient) connect(ctx context.Context, quiet <-chan struct{}) {
	const lasting, stall = 2 * time.Second, 200 * time.Millisecond
	conn, err := grpc.NewClient(c.relays.address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.report("cannot connect: %v", err)
		return
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	var ending sync.WaitGroup
	defer ending.Wait()
	defer cancel()
	until := time.NewTimer(time.Duration(c.rand.Int64N(int64(2 * lasting))))
	defer until.Stop()
	keeps := !c.comesBack
	ending.Go(func() {
		defer cancel()
		select {
		case <-quiet:
			if keeps {
				<-ctx.Done()
			}
		case <-until.C:
		case <-ctx.Done():
		}
	})
	s, err := c.begin(ctx, discoveryv3.NewAggregatedDiscoveryServiceClient(conn))
	for err == nil {
		if !isClosed(quiet) && c.rand.IntN(4) == 0 {
			pause(ctx, c.rand, stall)
		}
		var r response
		if r, err = s.receive(); err == nil {
			c.update(func(h *listenersHeld) { err = s.answer(&r, c.take(h, &r, isClosed(quiet))) })
		}
	}
}

// listenerStream is a stream in either form.
type listenerStream interface {
	receive() (response, error)
	answer(r *response, nack *rpcstatus.Status) error
}

// begin opens a stream, and requests all Clusters and Listeners.
func (c *listenerClient) begin(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient) (s listenerStream, err error) {
	who := node(strings.ReplaceAll(c.id, " ", "-"), c.plane.name)
	who.UserAgentName = "envoy"
	versions := map[string]string{}
	c.update(func(h *listenersHeld) {
		h.stream++
		clear(h.refused)
		if c.rand.IntN(5) == 0 {
			c.past.add("forgets all")
			clear(h.listeners)
		}
		for name, l := range h.listeners {
			versions[name] = l.version
		}
		c.past.add("begins a stream with %v", h.listeners)
	})
	if c.form == sotw {
		stream, err := ads.StreamAggregatedResources(ctx)
		if err != nil {
			return nil, err
		}
		s := &listenerSotW{sotwSpeaker{stream: stream, node: who, types: map[string]*sotwType{}}}
		return s, errors.Join(s.subscribe(clusterType, nil, nil), s.subscribe(listenerType, nil, nil))
	}
	stream, err := ads.DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	d := &listenerDelta{deltaSpeaker{stream: stream, node: who}}
	return d, errors.Join(d.subscribe(clusterType, nil, nil), d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, InitialResourceVersions: versions}))
}

type listenerDelta struct{ deltaSpeaker }

func (s *listenerDelta) answer(r *response, nack *rpcstatus.Status) error {
	return s.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.typeURL, ResponseNonce: r.nonce, ErrorDetail: nack})
}

type listenerSotW struct{ sotwSpeaker }

func (s *listenerSotW) receive() (response, error) {
	r, err := s.sotwSpeaker.receive()
	r.full = true
	return r, err
}

func (s *listenerSotW) answer(r *response, nack *rpcstatus.Status) error {
	if nack == nil {
		return s.ack(r)
	}
	t := s.types[r.typeURL]
	t.nonce = r.nonce
	return s.stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.typeURL, VersionInfo: t.version, ResponseNonce: t.nonce, ErrorDetail: nack})
}

// take applies a response, and returns what the client rejects it with, nil if it accepts all of it.
func (c *listenerClient) take(h *listenersHeld, r *response, quiet bool) *rpcstatus.Status {
	if r.typeURL != listenerType {
		return nil
	}
	is := map[string]listenerState{}
	for name, res := range r.resources {
		var l listenerv3.Listener
		err := proto.Unmarshal([]byte(res.value), &l)
		revision, _ := strconv.Atoi(l.GetStatPrefix())
		if is[name] = (listenerState{revision, int(l.GetAddress().GetSocketAddress().GetPortValue())}); err != nil || l.GetName() != name {
			c.report("received %s with another content: %v (%v)", name, &l, err)
		}
	}
	c.past.add("receives nonce %s version %s: %v, without %v, errors %v", r.nonce, r.version, is, r.removed, r.errors)
	gone := slices.Clone(r.removed)
	for name := range h.listeners {
		if _, there := is[name]; r.full && !there {
			gone = append(gone, name)
		}
	}
	for _, name := range gone {
		delete(h.listeners, name)
		delete(h.refused, name)
	}
	var errs []string
	for _, name := range r.order {
		why := c.refuses(h, name, is[name], quiet)
		if h.refused[name] = why != ""; why != "" {
			errs = append(errs, name+": "+why)
			continue
		}
		h.listeners[name] = heldListener{is[name], r.resources[name].version, h.stream}
	}
	if errs == nil {
		return nil
	}
	words := "Error adding/updating listener(s) " + strings.Join(errs, "\n")
	c.past.add("rejects that: %s", words)
	return &rpcstatus.Status{Code: int32(codes.Internal), Message: words}
}

// refuses returns why the client refuses a Listener, "" if it does not: another one has its address; or, for a passing
// reason, the address is in use, as it is for each Listener that comes to an unused port for the first time.
func (c *listenerClient) refuses(h *listenersHeld, name string, is listenerState, quiet bool) string {
	const seldom = 12
	if h.listeners[name].listenerState == is {
		return ""
	}
	for other, has := range h.listeners {
		if other == name || has.port != is.port {
			continue
		}
		h.byAddress++
		c.mayRefuse(h, name, is, other, has)
		return fmt.Sprintf("error adding listener: '%s' has duplicate address '127.0.0.1:%d' as existing listener, "+
			"to check if the listener has duplicated addresses with other listeners or 'enable_reuse_port' is set to 'false' for the listener", name, is.port)
	}
	inUse := fmt.Sprintf("cannot bind '127.0.0.1:%d': Address already in use", is.port)
	switch {
	case is.port >= unusedPorts && h.refusedLast[name] != is:
		h.refusedLast[name] = is
		return inUse
	case !quiet && c.rand.IntN(seldom) == 0:
		return inUse
	}
	return ""
}

// mayRefuse checks that nobody could know that the client refuses a Listener because of another one that it has: the client
// has refused what it was sent of the other one, or it has that from an earlier stream, in a state of which only the name
// is known; or the Listener comes from a time before that of the other one.
func (c *listenerClient) mayRefuse(h *listenersHeld, name string, is listenerState, other string, has heldListener) {
	earlier := has.stream < h.stream && c.plane.hasMoved(other, has.listenerState)
	if !h.refused[other] && !earlier && has.revision < is.revision {
		c.report("was sent %s %v, whose address %s %v has, as the relay knows", name, is, other, has)
	}
}

// chaosListeners are control planes with Listeners, and their clients.
type chaosListeners struct {
	planes  []*listenerPlane
	clients []*listenerClient
	moved   chan struct{} // closed when the Listeners have moved to unused ports
}

func startChaosListeners(t testing.TB, actor func() *rand.Rand) *chaosListeners {
	l := &chaosListeners{moved: make(chan struct{})}
	for _, speaks := range []form{delta, sotw} {
		l.planes = append(l.planes, startListenerPlane(t, "listeners-"+string(speaks), speaks, actor()))
	}
	return l
}

// all returns the control planes.
func (l *chaosListeners) all() (all []*chaosPlane) {
	for _, p := range l.planes {
		all = append(all, p.chaosPlane)
	}
	return all
}

// run starts the failures, which last until chaos ends, and clients, which live until life ends.
func (l *chaosListeners) run(chaos, life context.Context, running, living *sync.WaitGroup, relays *relays, quiet <-chan struct{}, found func(), actor func() *rand.Rand) {
	for _, p := range l.planes {
		p.truth.found = found
		changes, accidents := actor(), actor()
		running.Go(func() { p.change(chaos, changes) })
		running.Go(func() { p.suffer(chaos, accidents) })
		for n := range 4 {
			c := &listenerClient{form: []form{delta, sotw}[n%2], plane: p, relays: relays, rand: actor(), comesBack: n < 2}
			c.id = fmt.Sprintf("%s client %d of %s", c.form, n, p.name)
			c.value = listenersHeld{listeners: map[string]heldListener{}, refused: map[string]bool{}, refusedLast: map[string]listenerState{}}
			l.clients = append(l.clients, c)
			living.Go(func() { c.live(life, quiet, l.moved) })
		}
	}
}

// settle moves all Listeners to unused ports, where each client refuses each of them once. Then they come again with
// other versions and the same contents, and all clients have to have them.
func (l *chaosListeners) settle(t testing.TB) {
	t.Helper()
	for _, p := range l.planes {
		p.plane.change(func() {
			for name, is := range p.now() {
				p.put(name, unusedPorts+is.port)
			}
		})
	}
	close(l.moved)
	await := func(what string, lacks func(*listenersHeld, string, listenerState) bool) {
		within(t, guardsSilence+patience, what, func() error {
			var all []string
			for _, c := range l.clients {
				var exist map[string]listenerState
				c.plane.read(func() { exist = c.plane.now() })
				c.read(func(h *listenersHeld) {
					for name, is := range exist {
						if lacks(h, name, is) {
							all = append(all, fmt.Sprintf("%s has %v, not %s %v; it refused %v", c.id, h.listeners, name, is, h.refusedLast))
						}
					}
					if len(h.listeners) > len(exist) {
						all = append(all, fmt.Sprintf("%s has %v, want only %v", c.id, h.listeners, exist))
					}
				})
			}
			if len(all) == 0 {
				return nil
			}
			slices.Sort(all)
			return errors.New(strings.Join(all, "\n"))
		})
	}
	defer func() {
		if t.Failed() {
			for _, c := range l.clients {
				t.Logf("the last events of %s:\n%v", c.id, &c.past)
			}
		}
	}()
	await("all clients have refused all listeners", func(h *listenersHeld, name string, is listenerState) bool {
		return h.refusedLast[name] != is
	})
	// A NACK may still be on its way when the other version comes: then the relay does not know yet whom it concerns.
	renames, end := context.WithCancel(t.Context())
	var renaming sync.WaitGroup
	defer renaming.Wait()
	defer end()
	renaming.Go(func() {
		const between = 10 * time.Second
		ticker := time.NewTicker(between)
		defer ticker.Stop()
		for renames.Err() == nil {
			for _, p := range l.planes {
				p.rename()
			}
			select {
			case <-ticker.C:
			case <-renames.Done():
			}
		}
	})
	await("all clients have the listeners that they refused", func(h *listenersHeld, name string, is listenerState) bool {
		return h.listeners[name].listenerState != is
	})
	for _, c := range l.clients {
		c.read(func(h *listenersHeld) {
			t.Logf("%s: %d streams; it refused %d listeners whose addresses others had", c.id, h.stream, h.byAddress)
		})
	}
}
