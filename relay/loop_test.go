package relay

// Loops of relays that go through redirects: from one authority to another, of which
// each relay asks the other for one. The chains of relays do not show them, as each
// stream is for one authority.

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/urn"
)

// loop are relays, each of which has the control plane of one authority, and asks the
// others for theirs.
type loop struct {
	*relayNet
	planes map[string]*scriptedPlane
}

func newLoop(t *testing.T, form string, authorities ...string) *loop {
	t.Helper()
	c := &loop{relayNet: &relayNet{t: t, relays: map[string]*servedRelay{}}, planes: map[string]*scriptedPlane{}}
	for _, own := range authorities {
		c.planes[own] = newScriptedPlane("delta")
		config := fmt.Sprintf("listeners: [{address: \"127.0.0.1:18000\"}]\nnode: {id: relay-%s}\nauthorities:\n", own)
		for _, a := range authorities {
			protocol := form
			if a == own {
				protocol = "delta"
			}
			config += fmt.Sprintf("  - {name: %s, servers: [{address: \"%s:1\", protocol: %s}]}\n", a, a, protocol)
		}
		c.relays[own] = startInMemory(t, config, func(authority string) dialer {
			return func(ctx context.Context, address string) (net.Conn, error) {
				if authority == own {
					return c.planes[own].dial(ctx, address)
				}
				return c.relays[authority].lis.DialContext(ctx)
			}
		})
	}
	c.plane = c.planes[authorities[0]]
	return c
}

func (c *loop) close() {
	c.relayNet.close()
	for _, p := range c.planes {
		p.down()
	}
}

// redirect has the control plane of an authority say that its resource is elsewhere.
func (c *loop) redirect(from, to string) {
	c.t.Helper()
	u, err := urn.ParseURL(to)
	if err != nil {
		c.t.Fatal(err)
	}
	locator, err := u.Proto()
	if err != nil {
		c.t.Fatal(err)
	}
	a, err := anypb.New(locator)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, st := range c.planes[from].all() {
		if err := st.send(&discoveryv3.DeltaDiscoveryResponse{
			TypeUrl: typeURLOf(c.t, "rds"), Nonce: "redirect", Resources: []*discoveryv3.Resource{{Name: inLoop(from), Version: "1", Resource: a}},
		}); err != nil {
			c.t.Fatal(err)
		}
	}
	synctest.Wait()
}

func inLoop(authority string) string {
	return "xdstp://" + authority + "/envoy.config.route.v3.RouteConfiguration/r"
}

// responses is how many there have been, of relays and of control planes.
func (c *loop) responses() (n uint64) {
	for _, r := range c.relays {
		for _, statuses := range r.relay.origins.statuses() {
			for _, st := range statuses {
				n += st.Responses
			}
		}
	}
	return n
}

// A loop is sent as one, as relays tell each other errors. It comes
// to rest, costs nothing as long as it lasts, and is over when it is undone.
func TestALoopThroughRedirectsComesToRest(t *testing.T) {
	for _, tt := range []struct {
		name, form  string
		authorities []string
		alt         string
		want        string
	}{
		{name: "two", form: "delta", authorities: []string{"a", "b"}, want: "Unavailable redirects in a loop across relays: " + inLoop("a") + " -> " + inLoop("b") + " -> " + inLoop("a") + "]"},
		{name: "three", form: "delta", authorities: []string{"a", "b", "c"}, want: "Unavailable redirects in a loop across relays: " + inLoop("a") + " -> " + inLoop("b") + " -> " + inLoop("c") + " -> " + inLoop("a") + "]"},
		{
			name: "with alternatives", form: "delta", authorities: []string{"a", "b"}, alt: "#alt=xdstp://nowhere/envoy.config.route.v3.RouteConfiguration/r",
			want: "Unavailable redirects in a loop across relays: " + inLoop("a") + " -> " + inLoop("b") + " -> " + inLoop("a") + "]",
		},
		{name: "sotw", form: "sotw", authorities: []string{"a", "b"}, want: "Unavailable redirects in a loop across relays: " + inLoop("a") + " -> " + inLoop("b") + " -> " + inLoop("a") + "]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newLoop(t, tt.form, tt.authorities...)
				defer n.close()
				c := n.client("a", "delta", "client")
				n.ask(c, inLoop("a"))
				for i, a := range tt.authorities {
					n.redirect(a, inLoop(tt.authorities[(i+1)%len(tt.authorities)])+tt.alt)
				}
				if got := received(c, 14*time.Second); got != "" {
					t.Errorf("the client receives %q before its time", got)
				}
				const enough, few = 20, 2
				if got := received(c, time.Minute); !strings.HasSuffix(got, tt.want) {
					t.Errorf("the client receives %q, want %q", got, tt.want)
				}
				before, goroutines := n.responses(), runtime.NumGoroutine()
				if before > enough {
					t.Errorf("%d responses before it came to rest", before)
				}
				for range 60 {
					if got := received(c, time.Minute); got != "" {
						t.Errorf("the client receives %q, which is no news", got)
					}
				}
				if got := n.responses(); got != before {
					t.Errorf("%d responses while nothing happened", got-before)
				}
				// The runtime's own, as those of finalizers, come and go.
				if got := runtime.NumGoroutine(); got > goroutines+few {
					t.Errorf("%d goroutines, of %d", got, goroutines)
				}
				last := tt.authorities[len(tt.authorities)-1]
				n.planes[last].respond(t, "rds", "", "", n.planes[last].all(), inLoop(last)+"@1=one")
				if got := received(c, time.Minute); !strings.Contains(got, inLoop("a")+"@") || !strings.Contains(got, "=one") {
					t.Errorf("the client receives %q when the loop is undone", got)
				}
			})
		})
	}
}
