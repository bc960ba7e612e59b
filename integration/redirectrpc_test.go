package integration

// gRPC's client, which does not support redirects and collections, with names that lead from one authority to
// another. gRFC A47; TP1, "Server redirects".

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// xdstp returns an xdstp name.
func xdstp(authority, typeURL, id string) string {
	return "xdstp://" + authority + "/" + typeURL[len("type.googleapis.com/"):] + "/" + id
}

// authoritiesOf returns the configuration for control planes of several authorities. Old-style names belong
// to the first one.
func authoritiesOf(upstream form, rest string, names []string, planes ...*mortal) string {
	config := prelude + "\nauthorities:\n"
	for i, p := range planes {
		config += fmt.Sprintf("  - name: %s\n    servers:\n      - {address: %q, protocol: %s, backoff: {base: 50ms, max: 200ms}}\n", names[i], p.address, upstream)
	}
	return config + "old_style_names:\n  - authority: " + names[0] + "\n" + rest
}

// federated returns gRPC's bootstrap for a relay that serves these authorities. The last authority names the
// relay explicitly as its server.
func federated(r *relay, names ...string) bootstrap {
	b := bootstrapFor(r, "edge-1")
	b.Authorities = map[string]bootstrapAuthority{}
	for _, name := range names {
		b.Authorities[name] = bootstrapAuthority{Template: xdstp(name, listenerType, "%s")}
	}
	last := names[len(names)-1]
	b.Authorities[last] = bootstrapAuthority{Template: xdstp(last, listenerType, "%s"), Servers: b.Servers}
	return b
}

// shopOf returns the resources that lead to a backend, under names of one authority.
func shopOf(t testing.TB, authority, id string, b *backend) (all []said) {
	t.Helper()
	routes, cluster, endpoints := xdstp(authority, routeType, id), xdstp(authority, clusterType, id), xdstp(authority, endpointType, id)
	for _, m := range []proto.Message{
		apiListener(t, xdstp(authority, listenerType, id), routes),
		routeConfiguration(routes, routeTo(cluster, prefix(""))),
		edsCluster(cluster, endpoints),
		endpointsAt(t, endpoints, b.address),
	} {
		all = append(all, has(t, m))
	}
	return all
}

// follow waits until RPCs reach want. Until then, an RPC may fail for one reason only: gRPC-Go selects a
// cluster by its new routes a moment before its balancer knows the cluster.
func (c *channel) follow(what string, want *backend) {
	c.t.Helper()
	eventually(c.t, what+": RPCs reach "+want.id, func() error {
		id, err := c.call(someMethod)
		if err != nil && strings.Contains(err.Error(), "unknown cluster selected for RPC") {
			return err
		}
		if err != nil {
			c.t.Fatalf("%s: an RPC failed: %v", what, err)
		}
		if id != want.id {
			return fmt.Errorf("an RPC reached %s", id)
		}
		return nil
	})
}

// TestRPCsFlowThroughARedirectedListener checks a target whose listener is a redirect to a listener of
// another authority. RPCs follow a change of the redirect and of the resources behind it, and succeed while
// either authority is down.
func TestRPCsFlowThroughARedirectedListener(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		for _, target := range []struct{ what, url, name string }{
			{"an old-style name", "xds:///shop", "shop"},
			{"an xdstp name", "xds://cloud.example.com/shop", xdstp("cloud.example.com", listenerType, "shop")},
		} {
			t.Run(fmt.Sprintf("%s, upstream %s", target.what, upstream), func(t *testing.T) {
				t.Parallel()
				one, other, third := startBackend(t, "one"), startBackend(t, "other"), startBackend(t, "third")
				blue, green := xdstp("onprem", listenerType, "blue"), xdstp("onprem", listenerType, "green")
				cloud, onprem := newMortal(t, upstream), newMortal(t, upstream)
				cloud.start(redirect(t, listenerType, target.name, blue))
				onprem.start(append(shopOf(t, "onprem", "blue", one), shopOf(t, "onprem", "green", other)...)...)
				names := []string{"cloud.example.com", "onprem"}
				r := startRelay(t, authoritiesOf(upstream, "", names, cloud, onprem))
				channel := dialXDS(t, federated(r, names...), target.url)
				channel.awaitReaches(someMethod, one)

				cloud.say(redirect(t, listenerType, target.name, green))
				channel.follow("the redirect changes", other)
				onprem.say(has(t, endpointsAt(t, xdstp("onprem", endpointType, "green"), third.address)))
				channel.follow("the endpoints change", third)

				cloud.kill()
				onprem.say(has(t, endpointsAt(t, xdstp("onprem", endpointType, "green"), other.address)))
				channel.follow("the redirect's authority is down", other)
				cloud.start(redirect(t, listenerType, target.name, blue))
				channel.follow("the redirect's authority is back, with another redirect", one)

				onprem.kill()
				channel.follow("the target's authority is down", one)
				cloud.say(shopUnder(t, target.name, "cloud.example.com", third)...)
				channel.follow("the target's authority is down, and the redirect becomes a listener", third)
			})
		}
	}
}

// shopUnder is shopOf with another name of the listener.
func shopUnder(t testing.TB, name, authority string, b *backend) []said {
	t.Helper()
	all := shopOf(t, authority, "own", b)
	all[0] = has(t, apiListener(t, name, xdstp(authority, routeType, "own")))
	return all
}

// TestRPCsFlowToTwoAuthoritiesBehindOneRelay checks gRFC A47: gRPC requests targets of two authorities from
// the same relay, and a listener of one authority names routes of the other. The loss of one authority does
// not affect the resources of the other.
func TestRPCsFlowToTwoAuthoritiesBehindOneRelay(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			names := []string{"cloud.example.com", "onprem"}
			inCloud, atOnprem, next := startBackend(t, "cloud"), startBackend(t, "onprem"), startBackend(t, "next")
			cloud, onprem := newMortal(t, upstream), newMortal(t, upstream)
			cloud.start(append(shopOf(t, names[0], "shop", inCloud),
				has(t, apiListener(t, xdstp(names[0], listenerType, "across"), xdstp(names[1], routeType, "shop"))))...)
			onprem.start(shopOf(t, names[1], "shop", atOnprem)...)
			r := startRelay(t, authoritiesOf(upstream, "", names, cloud, onprem))
			b := federated(r, names...)
			one, other, across := dialXDS(t, b, "xds://cloud.example.com/shop"), dialXDS(t, b, "xds://onprem/shop"), dialXDS(t, b, "xds://cloud.example.com/across")
			one.awaitReaches(someMethod, inCloud)
			other.awaitReaches(someMethod, atOnprem)
			across.awaitReaches(someMethod, atOnprem)

			cloud.kill()
			onprem.say(has(t, endpointsAt(t, xdstp(names[1], endpointType, "shop"), next.address)))
			other.follow("the first authority is down", next)
			across.follow("the listener's authority is down", next)
			one.awaitReaches(someMethod, inCloud)
			// A new client receives the cached resources.
			dialXDS(t, b, "xds://cloud.example.com/shop").awaitReaches(someMethod, inCloud)
			dialXDS(t, b, "xds://cloud.example.com/across").awaitReaches(someMethod, next)

			cloud.start(shopOf(t, names[0], "shop", atOnprem)...)
			one.follow("the authority is back, with other endpoints", atOnprem)
		})
	}
}
