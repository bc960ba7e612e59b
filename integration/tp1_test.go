package integration

// TP1, "Examples": each example, with the printed names, versions and types. TP1's clients follow redirects
// and alternatives themselves. Here the relay does that for its clients, and sends the control planes the
// requests that TP1's clients would send.
//
// In TP1, endpoints have their real type. Listeners have the type listenersType, which does not exist, so
// they are opaque to the relay.

import (
	"fmt"
	"testing"
)

const (
	someListeners   = "xdstp://some-authority/envoy.config.listeners.v3.Listener/"
	someCollection  = "xdstp://some-authority/envoy.config.listeners.v3.ListenerCollection/foo"
	someEndpoints   = "xdstp://some-authority/envoy.config.endpoint.v3.ClusterLoadAssignment/foo"
	otherListeners  = "xdstp://other-authority/envoy.config.listeners.v3.Listener/"
	nothingOfOthers = otherListeners + "nothing"
)

// twoAuthorities starts a relay for two control planes: TP1's, and another one from which the relay requests
// nothing in most examples.
func twoAuthorities(t testing.TB, some, other *port, more string) *relay {
	t.Helper()
	return startRelay(t, prelude+serversOf("some-authority", some, "other-authority", other)+more)
}

// serversOf returns the part of a configuration with the control planes of two authorities.
func serversOf(one string, first *port, two string, second *port) string {
	return fmt.Sprintf(`
authorities:
  - name: %s
    servers: [{address: %q, backoff: {base: 20ms, max: 100ms}}]
  - name: %s
    servers: [{address: %q, backoff: {base: 20ms, max: 100ms}}]
`, one, first.address, two, second.address)
}

// mustHaveReceivedAll checks that the relay has no more responses for a client: the next one answers a new
// request, to the other authority.
func (c *tp1Client) mustHaveReceivedAll(t testing.TB) {
	t.Helper()
	c.subscribe(listenersType, nothingOfOthers)
	c.awaitReceived(t, topic{listenersType, "-" + nothingOfOthers})
}

// TP1: "Singleton resource request".
func TestTP1Singleton(t *testing.T) {
	const response = `
resources:
- version: 1
  name: xdstp://some-authority/envoy.config.endpoint.v3.ClusterLoadAssignment/foo
  resource:
    "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
    payload: … foo's ClusterLoadAssignment payload …
`
	some, other := startTP1Plane(t, resources(t, response)...), startTP1Plane(t)
	r := twoAuthorities(t, some.port, other.port, "")
	c := openTP1Client(t, r.address)
	c.subscribe(endpointType, someEndpoints)
	c.awaitPrinted(t, endpointType, response)
	other.mustHaveSeenRequestsFor(t)
	c.mustHaveReceivedAll(t)
	some.mustHaveSeenRequestsFor(t, topic{endpointType, someEndpoints})
}

// TestTP1SingletonOfAnotherControlPlane is the example with go-control-plane. As in TP1, a cluster has the
// name of the endpoints. Through the relay, a client receives the same endpoints as from the control plane.
func TestTP1SingletonOfAnotherControlPlane(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			some, other := startControlPlane(t, upstream), startControlPlane(t, upstream)
			cluster, endpoints := edsCluster("some-cluster", someEndpoints), plainEndpoints(someEndpoints, 1)
			some.set(endpoints)
			other.set(cluster)
			r := twoAuthorities(t, some.port, other.port, "\nold_style_names: [{authority: other-authority}]\n")
			for _, f := range []form{delta, sotw} {
				c := newClient(t, r, f, node("a client", ""))
				c.subscribe(clusterType, "some-cluster")
				c.awaitHas(t, "the cluster", cluster)
				c.subscribe(endpointType, cluster.GetEdsClusterConfig().GetServiceName())
				c.awaitHas(t, "its endpoints", endpoints)
				if f == upstream {
					direct := newClientOn(t, connect(t, some.address), f, node("direct", ""))
					direct.subscribe(endpointType, someEndpoints)
					direct.awaitHas(t, "the endpoints", endpoints)
					was := func(c *client) (h held) {
						c.read(func(v *view) { h = v.held[topic{endpointType, someEndpoints}] })
						return h
					}
					if got, want := was(c), was(direct); f == delta && got != want {
						t.Errorf("the client received %q through the relay, and %q from the control plane", got, want)
					}
				}
			}
			some.read(func(s *seen) {
				if n := s.requested[topic{endpointType, someEndpoints}]; n != 2 || s.opened != 2 || len(s.requested) != 1 {
					t.Errorf("want one subscription each of the relay and of the direct client; the control plane has seen %s", s)
				}
			})
		})
	}
}

// TP1: "List collections". A client may request the collection with the collection's type, or with the type
// of its members.
func TestTP1List(t *testing.T) {
	const collection = `
resources:
- version: 1
  name: xdstp://some-authority/envoy.config.listeners.v3.ListenerCollection/foo
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.ListenerCollection
    entries:
    - locator: xdstp://some-authority/envoy.config.listeners.v3.Listener/bar
    - locator: xdstp://some-authority/envoy.config.listeners.v3.Listener/baz
`
	const members = `
resources:
- version: 1
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/bar
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: … bar's Listener payload …
- version: 1
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/baz
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: … baz's Listener payload …
`
	for requested, typeURL := range map[string]string{"as a collection": listenersCollectionType, "as listeners": listenersType} {
		t.Run(requested, func(t *testing.T) {
			t.Parallel()
			some, other := startTP1Plane(t, append(resources(t, collection), resources(t, members)...)...), startTP1Plane(t)
			r := twoAuthorities(t, some.port, other.port, "")
			c := openTP1Client(t, r.address)
			c.subscribe(typeURL, someCollection)
			c.awaitPrinted(t, typeURL, collection)
			// The client has to request the members itself.
			some.mustHaveSeenRequestsFor(t, topic{listenersCollectionType, someCollection})
			c.subscribe(listenersType, someListeners+"bar", someListeners+"baz")
			c.awaitPrinted(t, listenersType, members)
			other.mustHaveSeenRequestsFor(t)
			c.mustHaveReceivedAll(t)
			some.mustHaveSeenRequestsFor(t, topic{listenersCollectionType, someCollection},
				topic{listenersType, someListeners + "bar"}, topic{listenersType, someListeners + "baz"})
		})
	}
}

// TP1: "List collections with inlining". A client can request a named entry by its name, but not an anonymous
// one.
func TestTP1ListWithInlining(t *testing.T) {
	const collection = `
resources:
- version: 1
  name: xdstp://some-authority/envoy.config.listeners.v3.ListenerCollection/foo
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.ListenerCollection
    entries:
    - inline_entry:
        name: bar
        version: 8.5.4
        resource:
          "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
          payload: … bar's ClusterLoadAssignment payload …
    - inline_entry:
        # anonymous resource
        version: 3.9.0
        resource:
          "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
          payload: … baz's ClusterLoadAssignment payload …
`
	const bar = `
resources:
- version: 8.5.4
  name: xdstp://some-authority/envoy.config.listeners.v3.ListenerCollection/foo#entry=bar
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: … bar's ClusterLoadAssignment payload …
`
	some, other := startTP1Plane(t, resources(t, collection)...), startTP1Plane(t)
	r := twoAuthorities(t, some.port, other.port, "")
	c := openTP1Client(t, r.address)
	c.subscribe(listenersCollectionType, someCollection)
	c.awaitPrinted(t, listenersCollectionType, collection)
	c.subscribe(listenersType, someCollection+"#entry=bar")
	c.awaitPrinted(t, listenersType, bar)
	c.subscribe(listenersType, someCollection+"#entry=baz")
	c.awaitReceived(t, topic{listenersType, "-" + someCollection + "#entry=baz"})
	other.mustHaveSeenRequestsFor(t)
	c.mustHaveReceivedAll(t)
	some.mustHaveSeenRequestsFor(t, topic{listenersCollectionType, someCollection})
}

// globOfTP1 is the name that the client requests in "Glob collections".
const globOfTP1 = someListeners + "my-listeners/*?xds.node_type=ingress&xds.client_features.envoy.config.no_bind_to_port=true"

// membersOfTP1 is the control plane's response. It redirects bar to baz.
const membersOfTP1 = `
resources:
- version: 1
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/my-listeners/foo?xds.node_type=ingress&xds.client_features.envoy.config.no_bind_to_port=true
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: … foo's Listener payload …
- version: 42
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/my-listeners/bar?xds.node_type=ingress&xds.client_features.envoy.config.no_bind_to_port=true
  resource:
    "@type": type.googleapis.com/xds.core.v3.ResourceLocator
    locator: xdstp://some-authority/envoy.config.listeners.v3.Listener/baz
`

// besidesOfTP1 has the control plane's other resources: the target of bar, and members that the context
// parameters filter out.
const besidesOfTP1 = `
resources:
- version: 7
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/baz
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: … baz's Listener payload …
- version: 1
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/my-listeners/foo
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: for clients of no type
- version: 1
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/my-listeners/foo?xds.node_type=egress&xds.client_features.envoy.config.no_bind_to_port=true
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: for clients of another type
`

// followedOfTP1 is the response to a client for which the relay follows the redirect: baz's content under the
// name of bar. Its version is not compared: the relay marks versions of resources behind a redirect, because
// the same version of another authority may mean another content.
const followedOfTP1 = `
resources:
- version: 1
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/my-listeners/foo?xds.node_type=ingress&xds.client_features.envoy.config.no_bind_to_port=true
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: … foo's Listener payload …
- version: 7~f56a9430
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/my-listeners/bar?xds.node_type=ingress&xds.client_features.envoy.config.no_bind_to_port=true
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: … baz's Listener payload …
`

// TP1: "Glob collections". The relay follows the redirect.
func TestTP1GlobWithRedirect(t *testing.T) {
	some := startTP1Plane(t, append(resources(t, membersOfTP1), resources(t, besidesOfTP1)...)...)
	other := startTP1Plane(t)
	r := twoAuthorities(t, some.port, other.port, "")
	c := openTP1Client(t, r.address)
	c.subscribe(listenersType, globOfTP1)
	c.awaitPrinted(t, listenersType, followedOfTP1)
	// TP1 does not describe SotW clients. They see only the names inside resources.
	old := newClient(t, r, sotw, node("a SotW client", ""))
	old.subscribe(listenersType, globOfTP1)
	want := map[topic]string{}
	for _, listener := range resources(t, followedOfTP1) {
		want[topic{listenersType, listener.GetName()}] = string(listener.GetResource().GetValue())
	}
	old.awaitContents(t, "the members", want)
	other.mustHaveSeenRequestsFor(t)
	c.mustHaveReceivedAll(t)
	some.mustHaveSeenRequestsFor(t, topic{listenersType, globOfTP1}, topic{listenersType, someListeners + "baz"})
}

// passing is the beginning of the configuration of a relay that passes redirects on.
const passing = `
listeners: [{address: '127.0.0.1:0', redirects: pass}]
admin: {address: '127.0.0.1:0'}
node: {id: the-hub}
`

// TestTP1GlobWithRedirectPassedOn is the example word for word: with `redirects: pass` the client receives
// the response that TP1 prints, and has to request baz itself.
func TestTP1GlobWithRedirectPassedOn(t *testing.T) {
	some := startTP1Plane(t, append(resources(t, membersOfTP1), resources(t, besidesOfTP1)...)...)
	other := startTP1Plane(t)
	r := startRelay(t, passing+serversOf("some-authority", some.port, "other-authority", other.port))
	c := openTP1Client(t, r.address)
	c.subscribe(listenersType, globOfTP1)
	c.awaitPrinted(t, listenersType, membersOfTP1)
	some.mustHaveSeenRequestsFor(t, topic{listenersType, globOfTP1})
	other.mustHaveSeenRequestsFor(t)
	c.mustHaveReceivedAll(t)
}

// TestTP1GlobWithRedirectToAnotherAuthority is the example with baz in the other
// authority. TP1: "Federation".
func TestTP1GlobWithRedirectToAnotherAuthority(t *testing.T) {
	const bar = `
resources:
- version: 42
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/my-listeners/bar
  resource:
    "@type": type.googleapis.com/xds.core.v3.ResourceLocator
    locator: xdstp://other-authority/envoy.config.listeners.v3.Listener/baz
`
	const baz = `
resources:
- version: %d
  name: xdstp://other-authority/envoy.config.listeners.v3.Listener/baz
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: baz %[1]d
`
	const answer = `
resources:
- name: xdstp://some-authority/envoy.config.listeners.v3.Listener/my-listeners/bar
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: baz %d
`
	some := startTP1Plane(t, resources(t, bar)...)
	other := startTP1Plane(t, resources(t, fmt.Sprintf(baz, 1))...)
	r := twoAuthorities(t, some.port, other.port, "")
	c := openTP1Client(t, r.address)
	c.subscribe(listenersType, someListeners+"my-listeners/*")
	c.awaitPrinted(t, listenersType, fmt.Sprintf(answer, 1))
	other.set(resources(t, fmt.Sprintf(baz, 2))...)
	c.awaitPrinted(t, listenersType, fmt.Sprintf(answer, 2))
	some.mustHaveSeenRequestsFor(t, topic{listenersType, someListeners + "my-listeners/*"})
	other.mustHaveSeenRequestsFor(t, topic{listenersType, otherListeners + "baz"})
}
