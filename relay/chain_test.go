package relay

// Chains of relays, in process: relays in a loop return errors, and other clients do not
// notice.

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/metadata"

	"github.com/xds-relay/xds-relay/internal/chain"
)

// relayNet are relays that subscribe to each other and to a control plane, by their names.
type relayNet struct {
	t      *testing.T
	plane  *scriptedPlane
	relays map[string]*servedRelay

	mu      sync.Mutex
	asks    map[string]string     // whom a relay asks
	conns   map[string][]net.Conn // over which it does
	clients []*scriptedClient
}

// newRelayNet starts the relays. Each one requests old-style names, and names of the authority "fleet", from the one
// that asks names; "plane" is the control plane.
func newRelayNet(t *testing.T, asks map[string]string) *relayNet {
	t.Helper()
	n := &relayNet{t: t, plane: newScriptedPlane("delta"), relays: map[string]*servedRelay{}, asks: asks, conns: map[string][]net.Conn{}}
	for name := range asks {
		n.relays[name] = startInMemory(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:18000"}]
node: {id: %s}
authorities:
  - name: fleet
    servers: [{address: "next:18000", protocol: delta, backoff: {base: 1s, max: 10s}}]
old_style_names: [{authority: fleet}]
cache: {linger: 1m}
`, name), func(string) dialer { return n.dialer(name) })
	}
	return n
}

func (n *relayNet) dialer(name string) dialer {
	return func(ctx context.Context, address string) (net.Conn, error) {
		n.mu.Lock()
		next := n.asks[name]
		n.mu.Unlock()
		dial := n.plane.dial
		if next != "plane" {
			dial = func(ctx context.Context, _ string) (net.Conn, error) { return n.relays[next].lis.DialContext(ctx) }
		}
		conn, err := dial(ctx, address)
		if err == nil {
			n.mu.Lock()
			n.conns[name] = append(n.conns[name], conn)
			n.mu.Unlock()
		}
		return conn, err
	}
}

// rewire makes a relay subscribe to another one, as if it had been restarted with that configuration.
func (n *relayNet) rewire(name, next string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asks[name] = next
	for _, conn := range n.conns[name] {
		_ = conn.Close()
	}
}

// client connects a client to a relay.
func (n *relayNet) client(relay, form, name string, md ...string) *scriptedClient {
	n.t.Helper()
	c := &scriptedClient{
		name: name, delta: form == "delta", acks: true, node: &corev3.Node{Id: name}, held: map[string]string{},
		metadata: metadata.Pairs(md...),
	}
	n.relays[relay].connect(n.t, c, "ADS")
	n.clients = append(n.clients, c)
	return c
}

// ask makes a client request routes of these names.
func (n *relayNet) ask(c *scriptedClient, names ...string) {
	n.t.Helper()
	n.askFor(c, "rds", names...)
}

// askFor makes a client request these names of a type, or its wildcard.
func (n *relayNet) askFor(c *scriptedClient, typ string, names ...string) {
	n.t.Helper()
	line := "names "
	if c.delta {
		line = "subscribe "
	}
	if len(names) == 0 {
		names = []string{"*"}
	}
	c.request(n.t, &datadriven.TestData{
		CmdArgs: []datadriven.CmdArg{{Key: c.name}, {Key: typ}}, Input: line + strings.Join(names, " "),
	})
	synctest.Wait()
}

func (n *relayNet) close() {
	for _, c := range n.clients {
		c.close()
	}
	for _, r := range n.relays {
		r.close()
	}
	n.plane.down()
}

const (
	oldStyle = "route"
	federate = "xdstp://fleet/envoy.config.route.v3.RouteConfiguration/route"
)

// received returns the responses to a client in some time, in one text.
func received(c *scriptedClient, within time.Duration) string {
	time.Sleep(within)
	synctest.Wait()
	return strings.Join(c.take(), "\n")
}

// Relays detect a loop among them at once, and their clients get an error, with old-style and xdstp names, in both
// forms.
func TestRelaysInALoopAreRefused(t *testing.T) {
	quiet := time.Hour
	if testing.Short() {
		quiet = 5 * time.Minute // several times as long as any timer that looks for it again
	}
	for _, tt := range []struct {
		name  string
		asks  map[string]string
		shown []string // one of them
		ask   []string // the relays whose clients ask, one after the other
	}{
		{name: "itself", asks: map[string]string{"a": "a"}, ask: []string{"a"}, shown: []string{"a -> a"}},
		{name: "two", asks: map[string]string{"a": "b", "b": "a"}, ask: []string{"a"}, shown: []string{"b -> a -> b"}},
		{name: "two, with clients of both", asks: map[string]string{"a": "b", "b": "a"}, ask: []string{"a", "b"}, shown: []string{"b -> a -> b", "a -> b -> a"}},
		{name: "three", asks: map[string]string{"a": "b", "b": "c", "c": "a"}, ask: []string{"a"}, shown: []string{"b -> c -> a -> b"}},
		{name: "a loop behind a relay", asks: map[string]string{"edge": "a", "a": "b", "b": "a"}, ask: []string{"edge"}, shown: []string{"a -> b -> a"}},
	} {
		for _, form := range []string{"delta", "sotw"} {
			for _, name := range []string{oldStyle, federate} {
				t.Run(strings.Join([]string{tt.name, form, name}, " "), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n := newRelayNet(t, tt.asks)
						defer n.close()
						var clients []*scriptedClient
						for _, relay := range tt.ask {
							c := n.client(relay, form, "client-of-"+relay)
							n.ask(c, name)
							clients = append(clients, c)
						}
						for _, c := range clients {
							// Not after 15 seconds, when a client without an answer gets an error.
							got := received(c, 5*time.Second)
							if !slices.ContainsFunc(tt.shown, func(shown string) bool {
								return strings.Contains(got, "loop of relays: "+shown)
							}) || !strings.Contains(got, name+": Unavailable") {
								t.Errorf("%s receives %q, want a loop of %q", c.name, got, tt.shown)
							}
							// It is found again and again, which is no news.
							if got := received(c, quiet); got != "" {
								t.Errorf("%s receives %q", c.name, got)
							}
						}
					})
				})
			}
		}
	}
}

// When the loop ends, the error ends, too.
func TestALoopThatIsGoneIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newRelayNet(t, map[string]string{"a": "b", "b": "a"})
		defer n.close()
		c := n.client("a", "delta", "client")
		n.ask(c, oldStyle)
		if got := received(c, time.Second); !strings.Contains(got, "loop") {
			t.Fatalf("got %q", got)
		}
		n.rewire("b", "plane")
		time.Sleep(15 * time.Second)
		synctest.Wait()
		n.plane.respond(t, "rds", "", "", n.plane.all(), "route@1=one")
		if got := received(c, 0); !strings.Contains(got, "[route@1=one]") {
			t.Errorf("got %q", got)
		}
	})
}

// A chain without a loop works, and the control plane gets the ids of those of its relays that have relays behind
// them.
func TestAChainOfRelaysIsAnnounced(t *testing.T) {
	for _, name := range []string{oldStyle, federate} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newRelayNet(t, map[string]string{"edge": "hub", "hub": "root", "root": "plane"})
				defer n.close()
				c := n.client("edge", "sotw", "client")
				n.ask(c, name)
				n.plane.respond(t, "rds", "", "", n.plane.newest(), name+"@1=one")
				if got := received(c, 0); !strings.Contains(got, name+"=one") {
					t.Errorf("the client receives %q", got)
				}
				if got := n.plane.chains(); !slices.Equal(got, []string{"hub,root"}) {
					t.Errorf("the control plane receives %q", got)
				}
			})
		})
	}
}

// A relay opens another stream when the first relay connects to it as a client, and when one connects that has relays
// behind it. It does not for others, however many come and go.
func TestRelaysThatComeAndGoDoNotRenewStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newRelayNet(t, map[string]string{"hub": "plane"})
		defer n.close()
		direct := n.client("hub", "delta", "direct")
		n.ask(direct, "r")
		n.plane.respond(t, "rds", "", "", n.plane.newest(), "r@1=one")
		want := []string{"*"}
		streams := func(more ...string) {
			t.Helper()
			time.Sleep(20 * time.Second)
			synctest.Wait()
			want = append(want, more...)
			if got := n.plane.chains(); !slices.Equal(got, want) {
				t.Errorf("the control plane has seen streams of %q, want %q", got, want)
			}
		}
		streams()
		edge := n.client("hub", "delta", "edge", chain.Header, "*")
		n.ask(edge, "r")
		streams("hub")
		for i := range 10 {
			other := n.client("hub", "delta", fmt.Sprint("edge-", i), chain.Header, "*")
			n.ask(other, "r")
			other.close()
		}
		streams()
		for range 3 {
			mid := n.client("hub", "delta", "mid", chain.Header, "mid")
			n.ask(mid, "r")
			mid.close()
			time.Sleep(10 * time.Second)
		}
		streams("mid,hub")
		time.Sleep(time.Minute)
		streams("hub") // it has gone for long
		// The client has received nothing of all this.
		if got := received(direct, 0); strings.Count(got, "\n") != 0 || !strings.Contains(got, "r@1=one") {
			t.Errorf("the client receives %q", got)
		}
		// Two relays that connect at once cause one new stream, and those that follow soon another one.
		for i := range 6 {
			n.ask(n.client("hub", "delta", fmt.Sprint("mid-", i), chain.Header, fmt.Sprint("mid-", i)), "r")
		}
		streams("mid-0,hub", "mid-0,mid-1,mid-2,mid-3,mid-4,mid-5,hub")
	})
}

// Two relays that each have their own authority may subscribe to each other's: that is not a loop.
func TestRelaysMayAskEachOtherForDifferentAuthorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		planes := map[string]*scriptedPlane{"a": newScriptedPlane("delta"), "b": newScriptedPlane("delta")}
		relays := map[string]*servedRelay{}
		for own, other := range map[string]string{"a": "b", "b": "a"} {
			relays[own] = startInMemory(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:18000"}]
node: {id: %s}
authorities:
  - {name: a, servers: [{address: "a:1", protocol: delta}]}
  - {name: b, servers: [{address: "b:1", protocol: delta}]}
`, own), func(authority string) dialer {
				return func(ctx context.Context, address string) (net.Conn, error) {
					if authority == own {
						return planes[own].dial(ctx, address)
					}
					return relays[other].lis.DialContext(ctx)
				}
			})
		}
		n := &relayNet{t: t, relays: relays, plane: planes["a"]}
		defer planes["b"].down()
		defer n.close()
		const name = "xdstp://%s/envoy.config.route.v3.RouteConfiguration/r"
		for _, relay := range []string{"a", "b"} {
			c := n.client(relay, "delta", "client-of-"+relay)
			n.ask(c, fmt.Sprintf(name, "a"), fmt.Sprintf(name, "b"))
		}
		for authority, p := range planes {
			p.respond(t, "rds", "", "", p.all(), fmt.Sprintf(name, authority)+"@1=of-"+authority)
		}
		for _, c := range n.clients {
			if got := received(c, time.Minute); strings.Count(got, "@1=of-") != 2 || strings.Contains(got, "loop") {
				t.Errorf("%s receives %q", c.name, got)
			}
		}
	})
}

// A chain that cannot be read, or goes through the relay itself, ends the stream.
func TestChainsThatAreRefused(t *testing.T) {
	for _, tt := range []struct{ chain, want string }{
		{"hub", "code = FailedPrecondition desc = loop of relays: hub -> hub"},
		{"x,hub,y", "code = FailedPrecondition desc = loop of relays: hub -> y -> hub"},
		{strings.Repeat("x,", chain.MaxRelays) + "y", ""}, // x is one
		{"%zz", "code = InvalidArgument desc = x-xds-relay-chain: invalid URL escape"},
		{strings.Repeat("x", chain.MaxIDBytes+1), "code = InvalidArgument desc = x-xds-relay-chain has an id of more than 256 bytes"},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newRelayNet(t, map[string]string{"hub": "plane"})
			defer n.close()
			c := n.client("hub", "sotw", "client", chain.Header, tt.chain)
			n.ask(c, "r")
			got := received(c, 0)
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("%.40s: the client receives %q, want %s", tt.chain, got, tt.want)
			}
		})
	}
}
