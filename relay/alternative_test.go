package relay

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	alternativePrimary = "xdstp://fleet/envoy.config.route.v3.RouteConfiguration/x"
	alternativeOther   = "xdstp://spare/envoy.config.route.v3.RouteConfiguration/y"
	alternativeName    = alternativePrimary + "#alt=" + alternativeOther
)

// withAlternative runs a test with a client of a name with an alternative. first is the primary's
// control plane. The alternative's answers at once.
func withAlternative(t *testing.T, protocol, form string, test func(n *relayNet, c *scriptedClient, first *scriptedPlane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		first, spare := newScriptedPlane(protocol), newScriptedPlane("delta")
		n := &relayNet{t: t, plane: first, relays: map[string]*servedRelay{"relay": startInMemory(t, `
listeners: [{address: "127.0.0.1:18000"}]
authorities:
  - name: fleet
    servers: [{address: "fleet:1", protocol: `+protocol+`}]
    failover: {not_found: true, hysteresis: 3s}
  - name: spare
    servers: [{address: "spare:1", protocol: delta}]
`, func(authority string) dialer {
			return func(ctx context.Context, address string) (net.Conn, error) {
				if authority == "spare" {
					return spare.dial(ctx, address)
				}
				return first.dial(ctx, address)
			}
		})}}
		defer spare.down()
		defer n.close()
		c := n.client("relay", form, "client")
		n.ask(c, alternativeName, alternativePrimary+"2")
		synctest.Wait()
		go func() {
			for len(spare.newest()) == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(10 * time.Millisecond)
			spare.respond(t, "rds", "", "", spare.newest(), alternativeOther+"@1=alternative")
		}()
		test(n, c, first)
	})
}

// A SotW control plane answers for one name, and passes another over: its alternative is used after a second, and not
// only once the silence of 15 s means that the name does not exist. The primary comes late, and replaces it.
func TestAnAlternativeIsUsedSoonAfterSotWHasPassedOverItsPrimary(t *testing.T) {
	for _, form := range []string{"delta", "sotw"} {
		t.Run(form, func(t *testing.T) {
			withAlternative(t, "sotw", form, func(_ *relayNet, c *scriptedClient, first *scriptedPlane) {
				first.respond(t, "rds", "1", "", first.newest(), alternativePrimary+"2@1=other")
				if got := received(c, 900*time.Millisecond); !strings.Contains(got, "=other") || strings.Contains(got, "=alternative") {
					t.Errorf("before a second the client receives %q", got)
				}
				if got := received(c, 200*time.Millisecond); !strings.Contains(got, "=alternative") {
					t.Errorf("after a second the client receives %q", got)
				}
				first.respond(t, "rds", "2", "", first.newest(), alternativePrimary+"@1=primary\n"+alternativePrimary+"2@1=other")
				if got := received(c, 2900*time.Millisecond); got != "" {
					t.Errorf("before the hysteresis the client receives %q", got)
				}
				if got := received(c, 200*time.Millisecond); !strings.Contains(got, "=primary") {
					t.Errorf("after the hysteresis the client receives %q", got)
				}
			})
		})
	}
}

// A control plane is slow: the name with an alternative is answered late. What the control plane answers meanwhile says
// nothing of that name: it is of another type, or in delta of another name.
func TestNoAlternativeReplacesASlowPrimary(t *testing.T) {
	endpoints := strings.ReplaceAll(alternativePrimary, "route.v3.RouteConfiguration", "endpoint.v3.ClusterLoadAssignment")
	for _, tt := range []struct{ protocol, typ, meanwhile string }{
		{"sotw", "eds", endpoints},
		{"delta", "rds", alternativePrimary + "2"},
	} {
		for _, form := range []string{"delta", "sotw"} {
			t.Run(tt.protocol+"-"+form, func(t *testing.T) {
				withAlternative(t, tt.protocol, form, func(n *relayNet, c *scriptedClient, first *scriptedPlane) {
					n.askFor(c, "eds", endpoints)
					time.Sleep(time.Second)
					first.respond(t, tt.typ, "1", "", first.newest(), tt.meanwhile+"@1=meanwhile")
					if got := received(c, 12*time.Second); !strings.Contains(got, "=meanwhile") || strings.Contains(got, "=alternative") {
						t.Errorf("before the answer the client receives %q", got)
					}
					first.respond(t, "rds", "1", "", first.newest(), alternativePrimary+"@1=primary")
					if got := received(c, 4*time.Second); !strings.Contains(got, "=primary") || strings.Contains(got, "=alternative") {
						t.Errorf("after the answer the client receives %q", got)
					}
				})
			})
		}
	}
}
