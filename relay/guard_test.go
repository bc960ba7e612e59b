package relay

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const guardedConfig = `
listeners:
  - address: 127.0.0.1:18000
authorities:
  - name: a
    servers: [{address: "a:18000", protocol: delta, backoff: {base: 50ms, max: 200ms}}]
  - name: b
    servers: [{address: "b:18000", protocol: delta, backoff: {base: 50ms, max: 200ms}}]
    guard: {when: always}
old_style_names:
  - authority: a
views:
  - match: {type: cluster, wildcard: true}
    collections:
      - xdstp://a/envoy.config.cluster.v3.ClusterCollection/l
      - xdstp://b/envoy.config.cluster.v3.Cluster/g/*
cache: {linger: 1h}
`

// guarded are clients of a view, of a list of authority a, and of a glob of authority b.
type guarded struct {
	*plainWorld
	serving *servedRelay
	clients []*plainClient
	t       *testing.T
}

// withGuard runs a test with a relay whose clients have twelve members of the list, and twelve of the glob.
func withGuard(t *testing.T, test func(g *guarded)) {
	t.Helper()
	withGuardAs(t, guardedConfig, test)
}

func withGuardAs(t *testing.T, config string, test func(g *guarded)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := &guarded{t: t, plainWorld: &plainWorld{planes: map[string]*plainPlane{}, is: map[string]map[string]string{}, last: map[string]map[string]string{}, down: map[string]bool{}}}
		for _, a := range []string{"a", "b"} {
			g.planes[a], g.is[a], g.down[a] = newPlainPlane(), map[string]string{}, true
		}
		g.fill()
		g.do(t, "up a")
		g.do(t, "up b")
		g.serving = startInMemory(t, config, func(authority string) dialer { return g.planes[authority].dial })
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer func() {
			cancel()
			running.Wait()
			g.serving.close()
			for _, p := range g.planes {
				p.down()
			}
		}()
		for _, form := range []string{"delta", "sotw"} {
			c := &plainClient{what: form, has: map[string]string{}}
			g.clients = append(g.clients, c)
			conn, _ := g.serving.dial(t)
			running.Go(func() {
				_ = c.run(ctx, conn, form) // it ends with the test
				_ = conn.Close()
			})
		}
		g.after(15*time.Second, "at first", 12, 12)
		test(g)
	})
}

// fill makes all members exist.
func (g *guarded) fill() {
	list := "list"
	for i := range 12 {
		list += fmt.Sprintf(" a/%d", i)
		g.do(g.t, fmt.Sprintf("a/%d = x", i))
		g.do(g.t, fmt.Sprintf("a/g/%d = x", i))
		g.do(g.t, fmt.Sprintf("b/g/%d = x", i))
	}
	g.do(g.t, list)
}

// after lets time pass, and checks how many members of the list and of the glob clients have.
func (g *guarded) after(d time.Duration, when string, ofList, ofGlob int) {
	g.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	for _, c := range g.clients {
		c.mu.Lock()
		has := maps.Clone(c.has)
		c.mu.Unlock()
		a, b := 0, 0
		for name := range has {
			if strings.Contains(name, "/g/") {
				b++
			} else {
				a++
			}
		}
		if a != ofList || b != ofGlob {
			g.t.Errorf("%s, the %s client has %d members of the list and %d of the glob, want %d and %d", when, c.what, a, b, ofList, ofGlob)
		}
	}
}

// restart takes an authority away while its resources change.
func (g *guarded) restart(authority string, meanwhile ...string) {
	g.do(g.t, "down "+authority)
	for _, step := range meanwhile {
		g.do(g.t, step)
	}
	g.do(g.t, "up "+authority)
}

// mustHold checks what /authorities shows as held.
func (g *guarded) mustHold(when, want string) {
	g.t.Helper()
	got := ""
	for _, a := range g.serving.relay.observer.Authorities() {
		for _, h := range a.Held {
			got += fmt.Sprintf("%s: %d of %s %s until %v; ", a.Authority, h.Members, h.Type, h.Set, time.Until(h.Until).Round(time.Minute))
		}
	}
	if got = strings.TrimSuffix(got, "; "); got != want {
		g.t.Errorf("%s, held are %q, want %q", when, got, want)
	}
}

func TestAListThatIsShorterAfterAReconnect(t *testing.T) {
	withGuard(t, func(g *guarded) {
		g.restart("a", "list a/0")
		g.after(10*time.Second, "after the reconnect", 12, 12)
		g.mustHold("after the reconnect", "a: 11 of cluster * until 10m0s")
		g.after(9*time.Minute, "before the guard lets go", 12, 12)
		g.after(time.Minute, "when it does", 1, 12)
		// Later on the stream, the guard accepts a list's removals.
		g.fill()
		g.after(time.Minute, "when the list is whole", 12, 12)
		g.do(g.t, "list")
		g.after(time.Second, "when the list is empty", 0, 12)
		g.mustHold("then", "")
	})
}

func TestMembersOfAListThatAreGoneAfterAReconnect(t *testing.T) {
	withGuard(t, func(g *guarded) {
		var gone []string
		for i := range 11 {
			gone = append(gone, fmt.Sprintf("a/%d =", i))
		}
		g.restart("a", gone...)
		g.after(10*time.Second, "after the reconnect", 12, 12)
		g.mustHold("after the reconnect", "a: 11 of cluster * until 10m0s")
		g.restart("a")
		g.fill()
		g.after(20*time.Minute, "when they are there again", 12, 12)
		g.mustHold("then", "")
	})
}

func TestAListThatIsGoneAfterAReconnect(t *testing.T) {
	withGuard(t, func(g *guarded) {
		g.planes["a"].down()
		g.planes["a"].say(plainList, nil, false)
		g.planes["a"].up()
		g.after(10*time.Second, "after the reconnect", 12, 12)
		g.after(10*time.Minute, "when the guard lets go", 0, 12)
	})
}

// The guard holds members of a glob at their authority, and does not hold them again in the view.
func TestAGlobOfAViewIsHeldOnce(t *testing.T) {
	withGuard(t, func(g *guarded) {
		b := g.planes["b"] // it guards every answer
		b.mu.Lock()
		clear(b.says)
		b.mu.Unlock()
		b.say(plainName("b/other"), nil, false)
		g.after(9*time.Minute, "while the guard holds them", 12, 12)
		g.after(time.Minute+time.Second, "when it lets go", 12, 0)
		g.mustHold("then", "")
	})
}

// What a glob loses counts as lost by the glob only, also if a list of the same view loses something at the same time.
func TestAListAndAGlobOfAViewLoseMembersAtOnce(t *testing.T) {
	config := strings.ReplaceAll(guardedConfig, "xdstp://b/envoy.config.cluster.v3.Cluster/g/*", "xdstp://a/envoy.config.cluster.v3.Cluster/g/*")
	for _, test := range []struct {
		list string
		left int // of the list, while the guard holds what it holds
		then int
	}{
		{"list a/0", 1, 1},
		{"list", 2, 0},
	} {
		withGuardAs(t, config, func(g *guarded) {
			g.do(t, "list a/0 a/1")
			g.after(time.Minute, "when the list is short", 2, 12)
			g.restart("a", test.list, "a/g/0 =")
			g.after(time.Minute, "after the reconnect", test.left, 11)
			g.after(10*time.Minute, "when the guard has let go", test.then, 11)
		})
	}
}
