package relay

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// way forwards connections to an address until it is cut.
type way struct {
	address string
	mu      sync.Mutex
	isCut   bool
	conns   map[net.Conn]struct{}
}

func openWay(t *testing.T, to string) *way {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &way{address: l.Addr().String(), conns: map[net.Conn]struct{}{}}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil || !w.add(in, out) {
				_ = in.Close()
				continue
			}
			pipe := func(a, b net.Conn) {
				_, _ = io.Copy(a, b)
				_, _ = a.Close(), b.Close()
			}
			open.Go(func() { pipe(in, out) })
			open.Go(func() { pipe(out, in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.cut(true)
		open.Wait()
	})
	return w
}

// add notes both ends of a connection, and returns false if it is cut.
func (w *way) add(in, out net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isCut {
		_ = out.Close()
		return false
	}
	w.conns[in], w.conns[out] = struct{}{}, struct{}{}
	return true
}

// cut cuts the way, or lets connections through again.
func (w *way) cut(is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isCut = is; is {
		for c := range w.conns {
			_ = c.Close()
		}
		clear(w.conns)
	}
}

// staleTest are two relays of a fleet with a client each. The second one's control plane is the same as the first one's,
// at a later time. The first relay owns the client's scope, and both can be cut off.
type staleTest struct {
	*fleetTest
	plane, owner *way
	clients      [2]*holder
	log          syncBuffer // of the second relay
}

var older, newer = map[string]string{"m1": "first", "m2": "first"}, map[string]string{"m1": "second", "m2": "second", "m3": "second"}

// comesFromServers reports whether a scope is to come from the authority's servers.
func (r *Relay) comesFromServers(scope cache.Scope) bool {
	from, _ := r.fleet.Load().Route(scope)
	return from == nil
}

func startStaleTest(t *testing.T) *staleTest {
	t.Helper()
	f := startFleetTest(t)
	s := &staleTest{fleetTest: f, plane: openWay(t, f.plane.address), owner: openWay(t, f.peers[0])}
	second := openWay(t, f.peers[1])
	addresses := [2]string{s.plane.address, startLabelledPlane(t, "second", "m1", "m2", "m3").address}
	for i := range f.relays {
		config := fmt.Sprintf(`
listeners: [{address: "%s"}]
node: {id: relay-%d}
authorities: [{name: a, servers: [{address: "%s", protocol: delta}]}]
old_style_names: [{authority: a, partition: node.cluster}]
drain: {time: 0s}
fleet: {name: edge, listen: "%s", members: {static: ["%s", "%s"]}}`, f.addresses[i], i, addresses[i], f.peers[i], s.owner.address, second.address)
		f.relays[i], _ = runRelay(t, config, slog.New(slog.NewTextHandler([]io.Writer{io.Discard, &s.log}[i], nil)))
	}
	f.awaitShared()
	zone := 0
	for f.relays[1].comesFromServers(zoneScope(zone)) {
		zone++ // awaitShared has seen to it that there is one
	}
	for i := range s.clients {
		s.clients[i] = hold(t, connectTo(t, f.addresses[i]), false, &corev3.Node{Id: fmt.Sprint(i), Cluster: fmt.Sprint(zone)})
		s.clients[i].awaitHas(t, "at the start", older)
	}
	return s
}

// TestAnOwnerWithoutItsControlPlaneKeepsScopesFromNobody: other members that reach it use it, and come back to the owner
// only when the owner does, too. Nobody is sent anything older.
func TestAnOwnerWithoutItsControlPlaneKeepsScopesFromNobody(t *testing.T) {
	s := startStaleTest(t)
	s.plane.cut(true)
	s.clients[1].awaitHas(t, "the owner does not hear the control plane", newer)
	moves, refusals := s.relays[1].scopes.handovers.Load(), refusals(&s.log)
	s.owner.cut(true)
	await(t, "the owner is lost", func() bool { return s.routed(1) == 0 })
	s.owner.cut(false)
	awaitRefusals(t, &s.log, refusals+1)
	if has, _, removed, _ := s.clients[1].state(); has["m1"] != "second" || len(removed) > 0 {
		t.Errorf("a client has %v, removed %v", has, removed)
	}
	if n := s.relays[1].scopes.handovers.Load(); n != moves {
		t.Errorf("the scope has moved %d times, to an owner that does not serve it", n-moves)
	}
	s.plane.cut(false)
	s.clients[1].awaitHas(t, "the owner hears its control plane", older)
}

func refusals(log *syncBuffer) int {
	return strings.Count(log.String(), "does not serve scopes, which come from elsewhere")
}

func awaitRefusals(t *testing.T, log *syncBuffer, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d refusals", n), func() bool { return refusals(log) >= n })
}

// TestAMemberThatRefusesEndsNoStreamToAControlPlane: it is asked again, while the scope comes from elsewhere.
func TestAMemberThatRefusesEndsNoStreamToAControlPlane(t *testing.T) {
	f := startFleetTest(t)
	var log syncBuffer
	f.relays[0], _ = runRelay(t, f.config(0, "a", f.fleetOf(0, "", f.peers[0], f.peers[1])), slog.New(slog.NewTextHandler(&log, nil)))
	f.run(1, f.config(1, "b", f.fleetOf(1, "", f.peers[0], f.peers[1])))
	await(t, "the relays know each other", func() bool { return f.routed(0) > 0 && f.routed(1) > 0 })
	f.connect()
	awaitRefusals(t, &log, 1)
	await(t, "no scope comes from there", func() bool { return f.moved(0) == 0 })
	opened := f.plane.opened()
	awaitRefusals(t, &log, 2)
	if n := f.plane.opened(); n != opened {
		t.Errorf("%d streams were opened at the control plane, want none", n-opened)
	}
	if n := refusals(&log); n > 3 {
		t.Errorf("%d lines about %d scopes", n, fleetZones)
	}
}

// TestScopesMoveOnceToAnotherFleet: after a reload, scopes do not come from the control planes until members are found.
func TestScopesMoveOnceToAnotherFleet(t *testing.T) {
	f := startFleetTest(t)
	for i := range f.relays {
		f.run(i, f.config(i, "a", f.fleetOf(i, "", f.peers[0], f.peers[1])))
	}
	f.awaitShared()
	f.connect()
	for i := range f.relays {
		other := fmt.Sprintf(`, advertise: "%s"`, strings.Replace(f.peers[i], "127.0.0.1", "localhost", 1))
		f.mustReload(i, f.config(i, "a", f.fleetOf(i, other, f.peers[0], f.peers[1])))
		moves := func() int { return int(f.relays[i].scopes.handovers.Load()) }
		await(t, "scopes have moved", func() bool { return moves() >= f.routed(i) && f.moved(i) == f.routed(i) })
		if n := moves(); n != f.routed(i) {
			t.Errorf("relay %d: %d partitions have moved %d times", i, f.routed(i), n)
		}
	}
}
