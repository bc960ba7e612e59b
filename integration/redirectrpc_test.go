package integration

// gRPC's client, which knows nothing of redirects and collections, and names that lead
// from one authority to another. gRFC A47; TP1, "Server redirects".

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// xdstp makes a name.
func xdstp(authority, typeURL, id string) string {
	return "xdstp://" + authority + "/" + typeURL[len("type.googleapis.com/"):] + "/" + id
}

// authoritiesOf is the configuration for control planes of several authorities, each
// spelled `NAME: settings`. Old-style names are the first one's.
func authoritiesOf(upstream form, rest string, names []string, planes ...*mortal) string {
	config := prelude + "\nauthorities:\n"
	for i, p := range planes {
		config += fmt.Sprintf("  - name: %s\n    servers:\n      - {address: %q, protocol: %s, backoff: {base: 50ms, max: 200ms}}\n", names[i], p.address, upstream)
	}
	return config + "old_style_names:\n  - authority: " + names[0] + "\n" + rest
}

// federated is gRPC's bootstrap for a relay behind which there are these authorities.
// One of them names the relay as its server by itself.
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

// shopOf is all that leads to a backend, under names of one authority.
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

// follow waits until RPCs reach another backend; none may fail meanwhile. But gRPC-Go
// selects clusters by new routes a moment before its balancer has heard of them.
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
			return fmt.Errorf("one reached %s", id)
		}
		return nil
	})
}

// TestRPCsFlowThroughARedirectedListener checks that the listener of a target may be a
// redirect to one of another authority: RPCs follow when it is directed elsewhere, and
// when what it leads to changes, and they flow while either authority is dead.
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
				channel.follow("the redirect leads elsewhere", other)
				onprem.say(has(t, endpointsAt(t, xdstp("onprem", endpointType, "green"), third.address)))
				channel.follow("the endpoints change", third)

				cloud.kill()
				onprem.say(has(t, endpointsAt(t, xdstp("onprem", endpointType, "green"), other.address)))
				channel.follow("the redirect's authority is dead", other)
				cloud.start(redirect(t, listenerType, target.name, blue))
				channel.follow("it is back, with another redirect", one)

				onprem.kill()
				channel.follow("the target's authority is dead", one)
				cloud.say(shopUnder(t, target.name, "cloud.example.com", third)...)
				channel.follow("the other authority is dead, and the listener no redirect any more", third)
			})
		}
	}
}

// shopUnder is a shop whose listener has that name.
func shopUnder(t testing.TB, name, authority string, b *backend) []said {
	t.Helper()
	all := shopOf(t, authority, "own", b)
	all[0] = has(t, apiListener(t, name, xdstp(authority, routeType, "own")))
	return all
}

// TestRPCsFlowToTwoAuthoritiesBehindOneRelay checks gRFC A47: channels of targets of two
// authorities, for which gRPC asks the same relay, and routes that lead from one to the
// other. The death of one authority concerns nobody who requests the other.
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
			other.follow("the other authority is dead", next)
			across.follow("the listener's authority is dead", next)
			one.awaitReaches(someMethod, inCloud)
			// A new client receives what the relay holds.
			dialXDS(t, b, "xds://cloud.example.com/shop").awaitReaches(someMethod, inCloud)
			dialXDS(t, b, "xds://cloud.example.com/across").awaitReaches(someMethod, next)

			cloud.start(shopOf(t, names[0], "shop", atOnprem)...)
			one.follow("the authority is back, with other endpoints", atOnprem)
		})
	}
}
