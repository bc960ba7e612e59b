package relay

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A resource with a TTL from one server expires, although that server is gone and the active server does not mention
// it.
func TestATimeToLiveEndsUnderAnotherServer(t *testing.T) {
	for _, form := range []string{"delta", "sotw"} {
		t.Run(form, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				planes := map[string]*scriptedPlane{"first:1": newScriptedPlane("delta"), "second:1": newScriptedPlane("delta")}
				n := &relayNet{t: t, plane: planes["first:1"], relays: map[string]*servedRelay{"relay": startInMemory(t, `
listeners: [{address: "127.0.0.1:18000"}]
authorities:
  - name: fleet
    servers:
      - {address: "first:1", protocol: delta, backoff: {base: 1s, max: 1s}}
      - {address: "second:1", protocol: delta}
old_style_names: [{authority: fleet}]
`, func(string) dialer {
					return func(ctx context.Context, address string) (net.Conn, error) {
						return planes[address].dial(ctx, address)
					}
				})}}
				defer planes["second:1"].down()
				defer n.close()
				c := n.client("relay", form, "client")
				n.ask(c, "goes", "stays", "renewed")
				first := planes["first:1"]
				first.respond(t, "rds", "", "", first.newest(), "goes@1=one ttl=1m\nstays@1=one\nrenewed@1=one ttl=1m")
				if got := received(c, 0); strings.Count(got, "=one") != 3 {
					t.Fatalf("the client receives %q", got)
				}
				first.down()
				more := []string{"missing"}
				if form == "sotw" {
					more = []string{"goes", "stays", "renewed", "missing"}
				}
				n.ask(c, more...)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				second := planes["second:1"]
				second.respond(t, "rds", "", "", second.newest(), "missing@1=two\nrenewed@1=one ttl=1m")
				if got := received(c, 0); !strings.Contains(got, "missing") || strings.Contains(got, "goes") {
					t.Errorf("the client receives %q", got)
				}
				if got := received(c, 49*time.Second); strings.Contains(got, "removed") || strings.Contains(got, "NotFound") {
					t.Errorf("before its time the client receives %q", got)
				}
				got := received(c, 2*time.Second)
				want := "removed=[goes]"
				if form == "sotw" {
					want = "errors=[goes: NotFound"
				}
				if !strings.Contains(got, want) || strings.Contains(got, "stays") || strings.Contains(got, "renewed") {
					t.Errorf("after its time the client receives %q, want %s", got, want)
				}
			})
		})
	}
}
