package relay

import (
	"context"
	"net"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/configs"
)

// Views and redirects through two relays. The inner relay has the control planes of two authorities, and a view over
// both. The outer one requests both authorities, and the old-style names, from the inner one.

const innerRelay = `
listeners: [{address: "127.0.0.1:18000", redirects: REDIRECTS}]
node: {id: inner}
authorities:
  - {name: a, servers: [{address: "a:1", protocol: delta}]}
  - {name: b, servers: [{address: "b:1", protocol: delta}]}
old_style_names: [{authority: a}]
views:
  - match: {type: cluster, wildcard: true}
    collections:
      - xdstp://a/envoy.config.cluster.v3.Cluster/g/*
      - xdstp://b/envoy.config.cluster.v3.Cluster/g/*
`

const outerRelay = `
listeners: [{address: "127.0.0.1:18000"}]
node: {id: outer}
authorities:
  - {name: a, servers: [{address: "inner:18000", protocol: FORM}]}
  - {name: b, servers: [{address: "inner:18000", protocol: FORM}]}
old_style_names: [{authority: a}]
`

// newTwoRelays starts the two relays, "inner" and "outer". They speak form between them.
func newTwoRelays(t *testing.T, form, redirects string) (*relayNet, map[string]*scriptedPlane) {
	t.Helper()
	planes := map[string]*scriptedPlane{"a": newScriptedPlane("delta"), "b": newScriptedPlane("delta")}
	inner := startInMemory(t, strings.ReplaceAll(innerRelay, "REDIRECTS", redirects), func(authority string) dialer { return planes[authority].dial })
	outer := startInMemory(t, strings.ReplaceAll(outerRelay, "FORM", form), func(string) dialer {
		return func(ctx context.Context, _ string) (net.Conn, error) { return inner.lis.DialContext(ctx) }
	})
	return &relayNet{t: t, plane: planes["a"], relays: map[string]*servedRelay{"inner": inner, "outer": outer}}, planes
}

// eachTwoRelays runs f with every form between the two relays, and of their client.
func eachTwoRelays(t *testing.T, f func(t *testing.T, n *relayNet, planes map[string]*scriptedPlane, form string)) {
	for _, between := range []string{"delta", "sotw"} {
		for _, redirects := range []configs.Redirects{configs.RedirectsFollow, configs.RedirectsPass} {
			for _, form := range []string{"delta", "sotw"} {
				t.Run(strings.Join([]string{between, string(redirects), "to a client in", form}, " "), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n, planes := newTwoRelays(t, between, string(redirects))
						defer planes["b"].down()
						defer n.close()
						f(t, n, planes, form)
					})
				})
			}
		}
	}
}

var versions = regexp.MustCompile(`@[0-9a-f~#]*`)

// newsOf returns what a client received, without versions.
func newsOf(c *scriptedClient) string {
	synctest.Wait()
	return versions.ReplaceAllString(strings.Join(c.take(), "\n"), "")
}

// The members of a view belong to several authorities. The outer relay accepts what the inner one sends of both,
// because both are configured to come from it.
func TestAViewOfARelayHasMembersOfSeveralAuthorities(t *testing.T) {
	const ofA, ofB = "xdstp://a/envoy.config.cluster.v3.Cluster/g/x", "xdstp://b/envoy.config.cluster.v3.Cluster/g/y"
	eachTwoRelays(t, func(t *testing.T, n *relayNet, planes map[string]*scriptedPlane, form string) {
		c := n.client("outer", form, "client")
		n.askFor(c, "cds")
		planes["a"].respond(t, "cds", "1", "", planes["a"].newest(), ofA+"@1=one")
		planes["b"].respond(t, "cds", "1", "", planes["b"].newest(), ofB+"@1=two")
		got := newsOf(c)
		if !strings.Contains(got, ofA+"=one") || !strings.Contains(got, ofB+"=two") || strings.Contains(got, "errors") {
			t.Errorf("the client receives %q", got)
		}
		planes["b"].respond(t, "cds", "2", "", planes["b"].newest(), "removed "+ofB)
		got = newsOf(c)
		want := map[string]string{"delta": "removed=[" + ofB + "]", "sotw": "[" + ofA + "=one]"}[form]
		if !strings.Contains(got, want) {
			t.Errorf("the client receives %q, want %s", got, want)
		}
	})
}

// One of the relays follows a redirect, whichever it is: the client gets the target and its changes, and keeps it
// while the target is not available.
func TestARedirectIsFollowedThroughTwoRelays(t *testing.T) {
	const from, to = "xdstp://a/envoy.config.route.v3.RouteConfiguration/from", "xdstp://b/envoy.config.route.v3.RouteConfiguration/to"
	eachTwoRelays(t, func(t *testing.T, n *relayNet, planes map[string]*scriptedPlane, form string) {
		c := n.client("outer", form, "client")
		n.askFor(c, "rds", from)
		say := func(plane, line, want string) {
			t.Helper()
			planes[plane].respond(t, "rds", "", "", planes[plane].newest(), line)
			if got := newsOf(c); want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("after %q the client receives %q, want %q", line, got, want)
			}
		}
		gone := map[string]string{"delta": "removed=[" + from + "]", "sotw": "errors=[" + from + ": NotFound"}[form]
		say("a", from+"@1=plain", from+"=plain")
		say("a", from+"@2 to="+to, "")
		say("b", to+"@1=one", from+"=one")
		say("b", to+"@2=two", from+"=two")
		say("b", "error "+to+" UNAVAILABLE busy", "Unavailable")
		late := n.client("outer", form, "late")
		n.askFor(late, "rds", from)
		if got := newsOf(late); !strings.Contains(got, from+"=two") {
			t.Errorf("a later client receives %q", got)
		}
		say("b", to+"@3=three", from+"=three")
		say("b", "removed "+to, gone)
		say("a", from+"@3=back", from+"=back")
	})
}

// A member of a view that becomes a redirect to another authority stays until the target is known. Other changes wait
// with it for 250 ms.
func TestARedirectInAViewIsFollowedThroughTwoRelays(t *testing.T) {
	const member, other, to = "xdstp://a/envoy.config.cluster.v3.Cluster/g/x", "xdstp://a/envoy.config.cluster.v3.Cluster/g/y", "xdstp://b/envoy.config.cluster.v3.Cluster/to"
	eachTwoRelays(t, func(t *testing.T, n *relayNet, planes map[string]*scriptedPlane, form string) {
		c := n.client("outer", form, "client")
		n.askFor(c, "cds")
		planes["a"].respond(t, "cds", "", "", planes["a"].newest(), member+"@1=one\n"+other+"@1=other")
		planes["b"].respond(t, "cds", "", "", planes["b"].newest(), "removed xdstp://b/envoy.config.cluster.v3.Cluster/g/*")
		if got := newsOf(c); !strings.Contains(got, member+"=one") || !strings.Contains(got, other+"=other") {
			t.Errorf("the client receives %q", got)
		}
		planes["a"].respond(t, "cds", "", "", planes["a"].newest(), member+"@2 to="+to+"\n"+other+"@2=changed")
		time.Sleep(250 * time.Millisecond) // as long as the change waits for the target
		got := newsOf(c)
		if form == "sotw" && !strings.Contains(got, member+"=one") || strings.Contains(got, "removed") || !strings.Contains(got, other+"=changed") {
			t.Errorf("before it is known where the redirect leads, the client receives %q", got)
		}
		planes["b"].respond(t, "cds", "", "", planes["b"].newest(), to+"@1=two")
		if got := newsOf(c); !strings.Contains(got, member+"=two") || strings.Contains(got, "removed") {
			t.Errorf("the client receives %q", got)
		}
	})
}
