package relay

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/internal/testplane"
)

func underPattern(authority string) string {
	return "xdstp://" + authority + ".example.com/envoy.config.cluster.v3.Cluster/x"
}

// One client makes up authorities under a pattern. It has as many streams upstream as its limit allows, which end
// when it leaves. Other clients are not affected.
func TestAClientThatMakesUpAuthoritiesHasFewStreamsUpstream(t *testing.T) {
	const made, scopes, idle = 20_000, 100, 10
	plane := newRecordingPlane()
	r, address := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0"}]
authorities: [{name: "*.example.com", servers: [{address: %q, protocol: delta}]}]
cache: {idle_scopes: %d}
`, testplane.Listen(t, plane), idle), slog.New(slog.DiscardHandler))

	canary := openDelta(t, connectTo(t, address))
	canary.ask(t, &corev3.Node{Id: "canary"}, underPattern("canary"))
	canary.receive(t, 1)

	attacker := openDelta(t, connectTo(t, address))
	names := make([]string, made)
	for i := range names {
		names[i] = underPattern(fmt.Sprintf("made-up-%d", i))
	}
	attacker.ask(t, &corev3.Node{Id: "attacker"}, names...)
	given, refused := attacker.receive(t, made)
	if len(given) != scopes || len(refused) != made-scopes {
		t.Errorf("%d names are given and %d refused, want %d and %d", len(given), len(refused), scopes, made-scopes)
	}
	want := fmt.Sprintf("%d 101 authorities, partitions and sets of dynamic parameters on this stream, but limits.scopes is 100", codes.ResourceExhausted)
	for name, why := range refused {
		if why != want {
			t.Fatalf("%s is refused: %s, want %s", name, why, want)
		}
	}

	// While it is connected, both earlier and new clients are served.
	canary.ask(t, nil, "xdstp://canary.example.com/envoy.config.cluster.v3.Cluster/y")
	canary.receive(t, 1)
	late := openDelta(t, connectTo(t, address))
	late.ask(t, &corev3.Node{Id: "late"}, underPattern("late"))
	late.receive(t, 1)

	// Refused names are given once others have ended.
	ended := given[0]
	if err := attacker.Send(unsubscribe(ended)); err != nil {
		t.Fatal(err)
	}
	again := names[len(names)-1]
	attacker.ask(t, nil, again)
	if given, refused := attacker.receive(t, 1); len(given) != 1 || given[0] != again {
		t.Errorf("asked again: %q is given, and %v refused", given, refused)
	}

	attacker.end()
	plane.await(t, "the streams of a client that has gone are closed", func() bool { return plane.open == idle+2 })
	plane.mu.Lock()
	most := plane.most
	plane.mu.Unlock()
	if limit := scopes + 3; most > limit {
		t.Errorf("%d streams were open upstream at once, want at most %d", most, limit)
	}
	if n := r.cache.Stats().Idle; n > idle {
		t.Errorf("%d names linger, want at most %d", n, idle)
	}
	canary.ask(t, nil, "xdstp://canary.example.com/envoy.config.cluster.v3.Cluster/z")
	canary.receive(t, 1)
}

// One connection has many streams with made-up Nodes.
func TestAConnectionThatMakesUpNodesHasFewPartitions(t *testing.T) {
	const scopes = 20
	plane := newRecordingPlane()
	r, address := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0", limits: {scopes_per_connection: %d}}]
authorities: [{name: cp, servers: [{address: %q, protocol: delta}]}]
old_style_names: [{authority: cp, partition: node.id}]
cache: {idle_scopes: 5}
`, scopes, testplane.Listen(t, plane)), slog.New(slog.DiscardHandler))
	conn := connectTo(t, address)
	var clients []*deltaClient
	for i := range scopes {
		// Several streams with one Node are one partition.
		for range 2 {
			c := openDelta(t, conn)
			c.ask(t, &corev3.Node{Id: fmt.Sprint("made-up-", i)}, "x")
			c.receive(t, 1)
			clients = append(clients, c)
		}
	}
	for _, names := range [][]string{{"x"}, {"*"}} {
		over := openDelta(t, conn)
		over.ask(t, &corev3.Node{Id: "one too many"}, names...)
		_, err := over.Recv()
		want := "21 authorities, partitions and sets of dynamic parameters on this connection, but limits.scopes_per_connection is 20"
		if status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != want {
			t.Errorf("%q: got %v, want RESOURCE_EXHAUSTED: %s", names, err, want)
		}
	}
	other := openDelta(t, connectTo(t, address))
	other.ask(t, &corev3.Node{Id: "other"}, "x")
	other.receive(t, 1)
	if n := r.server.Stats().Limits["scopes_per_connection"]; n != 2 {
		t.Errorf("the limit was exceeded %d times, want 2", n)
	}

	// The end of one of two streams of a Node makes no room; the end of both does.
	clients[0].end()
	clients[1].end()
	for deadline := time.Now().Add(time.Minute); ; {
		c := openDelta(t, conn)
		c.ask(t, &corev3.Node{Id: "in its place"}, "x")
		if _, err := c.Recv(); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("there is no room although a node has gone: %v", err)
		}
	}
	for _, c := range clients {
		c.end()
	}
	plane.await(t, "the streams of nodes that have gone are closed", func() bool { return plane.open <= 5+2 })
}

// A REST listener reports an exceeded limit to the client by HTTP.
func TestScopesAreLimitedOverREST(t *testing.T) {
	plane := newRecordingPlane()
	_, address := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0", protocol: rest, limits: {scopes: 1}, long_poll: 10s}]
authorities: [{name: "*.example.com", servers: [{address: %q, protocol: delta}]}]
`, testplane.Listen(t, plane)), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body := postJSON(ctx, t, address, fmt.Sprintf(`{"resource_names": [%q, %q]}`, underPattern("a"), underPattern("b")))
	if strings.Count(body, `"@type"`) != 1 || !strings.Contains(body, "but limits.scopes is 1") {
		t.Errorf("got %s, want one cluster and one name refused", body)
	}
}

// If the control plane has no streams left, scopes without clients do not keep a client from being served.
func TestIdleScopesMakeRoomForClientsWhenStreamsAreUsedUp(t *testing.T) {
	const most, fresh = 99, 20 // of 100 connections with a stream each
	plane := newRecordingPlane()
	r, address := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0", when_unreachable: wait}]
authorities: [{name: cp, servers: [{address: %q, protocol: delta}]}]
old_style_names: [{authority: cp, partition: node.id}]
cache: {linger: 1h}
`, testplane.Listen(t, plane, grpc.MaxConcurrentStreams(1))), slog.New(slog.DiscardHandler))
	open := func(n int, who string) (clients []*deltaClient) {
		conn := connectTo(t, address)
		for i := range n {
			c := openDelta(t, conn)
			c.ask(t, &corev3.Node{Id: fmt.Sprint(who, i)}, "x")
			clients = append(clients, c)
		}
		for _, c := range clients {
			// On a busy machine, a hundred connections may take longer than clients wait without an error.
			for given := 0; given == 0; {
				names, refused := c.receive(t, 1)
				if why := refused["x"]; why != "" && !strings.Contains(why, "cannot be reached") {
					t.Fatalf("a client of %q is refused: %s", who, why)
				}
				given = len(names)
			}
		}
		return clients
	}
	for _, c := range open(most, "old") {
		c.end()
	}
	awaitNoClients(t, r) // until then, their scopes are not idle
	open(fresh, "new")
	// A stream that has ended for the connection may still be open for the plane.
	plane.await(t, "no more streams are open upstream than there can be", func() bool { return plane.open <= 100 })
}

// awaitNoClients waits until the relay has noticed that its clients have left.
func awaitNoClients(t *testing.T, r *Relay) {
	t.Helper()
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for deadline := time.Now().Add(time.Minute); r.server.Clients() > 0; <-pace.C {
		if time.Now().After(deadline) {
			t.Fatalf("%d clients have not left within a minute", r.server.Clients())
		}
	}
}
