package integration

// TP1, "xDS relay proxy": two clients, a relay, and the relay's requests to the control plane; and
// "Alternatives", with control planes of two authorities.

import (
	"fmt"
	"slices"
	"testing"
)

const (
	aListeners = someListeners + "a-listeners/*"
	bListeners = someListeners + "b-listeners/*"
)

// The resources for the clients A and B. Together they are the control plane's response.
const (
	listenersOfA = `
resources:
- version: 1
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/a-listeners/foo
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: … foo's Listener payload …
- version: 42
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/a-listeners/bar
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: … bar's Listener payload …
`
	listenersOfB = `
resources:
- version: 13
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/b-listeners/baz
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: … baz's Listener payload …
`
)

// TestTP1RelayProxy checks that the relay serves two clients with different globs, and a third client with
// the first glob, through two subscriptions on one stream. Each client receives the listeners of its own
// glob, with the control plane's versions, and no others.
func TestTP1RelayProxy(t *testing.T) {
	some := startTP1Plane(t, append(resources(t, listenersOfA), resources(t, listenersOfB)...)...)
	other := startTP1Plane(t)
	r := twoAuthorities(t, some.port, other.port, "")
	open := func(name string) *tp1Client {
		c := openTP1Client(t, r.address)
		c.subscribe(listenersType, name)
		return c
	}
	a, b := open(aListeners), open(bListeners)
	a.awaitPrinted(t, listenersType, listenersOfA)
	b.awaitPrinted(t, listenersType, listenersOfB)
	second := open(aListeners)
	second.awaitPrinted(t, listenersType, listenersOfA)

	// A change of a listener of A does not reach B.
	const changed = `
resources:
- version: 43
  name: xdstp://some-authority/envoy.config.listeners.v3.Listener/a-listeners/bar
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.Listener
    payload: changed
`
	some.set(resources(t, changed)...)
	a.awaitPrinted(t, listenersType, changed)
	second.awaitPrinted(t, listenersType, changed)
	other.mustHaveSeenRequestsFor(t)
	for _, c := range []*tp1Client{a, b, second} {
		c.mustHaveReceivedAll(t)
	}
	some.mustHaveSeenRequestsFor(t, topic{listenersType, aListeners}, topic{listenersType, bListeners})
}

// TestTP1RelayProxyInOneRequest is the example to the letter. Both clients send requests before the control
// plane can be reached, so the relay sends one request with both names, as TP1 prints it, and receives one
// response.
func TestTP1RelayProxyInOneRequest(t *testing.T) {
	some := newTP1Plane(t, append(resources(t, listenersOfA), resources(t, listenersOfB)...)...)
	other := startTP1Plane(t)
	r := twoAuthorities(t, some.port, other.port, "")
	a, b := openTP1Client(t, r.address), openTP1Client(t, r.address)
	for c, name := range map[*tp1Client]string{a: aListeners, b: bListeners} {
		// Only clients with this feature receive an error without resources. Others would take it for an
		// empty answer.
		c.node.ClientFeatures = []string{"xds-relay.errors-alone"}
		c.subscribe(listenersType, name)
		c.await(t, "the client receives an error for its glob", func(v *tp1View) bool { return len(v.errors) > 0 })
		c.update(func(v *tp1View) { v.errors = nil })
	}
	some.start()
	a.awaitPrinted(t, listenersType, listenersOfA)
	b.awaitPrinted(t, listenersType, listenersOfB)
	some.mustHaveSeenRequestsFor(t, topic{listenersType, aListeners}, topic{listenersType, bListeners})
	some.read(func(s *tp1State) {
		if got, want := s.streams[0].requests[0].GetResourceNamesSubscribe(), []string{aListeners, bListeners}; !slices.Equal(slices.Sorted(slices.Values(got)), want) {
			t.Errorf("the relay's first request subscribes to %q, want %q", got, want)
		}
		if s.streams[0].sent != 1 {
			t.Errorf("the control plane sent %d responses, want 1", s.streams[0].sent)
		}
	})
}

// TestTP1RelayProxyBehindAnother checks that neither side notices a relay behind another. Clients receive the
// same resources as from one relay, with redirects followed, and the control plane receives the same
// requests.
func TestTP1RelayProxyBehindAnother(t *testing.T) {
	some := startTP1Plane(t, slices.Concat(resources(t, listenersOfA), resources(t, listenersOfB), resources(t, membersOfTP1), resources(t, besidesOfTP1))...)
	other := startTP1Plane(t)
	hub := startRelay(t, passing+serversOf("some-authority", some.port, "other-authority", other.port))
	at := &port{address: hub.address}
	r := twoAuthorities(t, at, at, "")
	for name, want := range map[string]string{aListeners: listenersOfA, bListeners: listenersOfB, globOfTP1: followedOfTP1} {
		for range 2 {
			c := openTP1Client(t, r.address)
			c.subscribe(listenersType, name)
			c.awaitPrinted(t, listenersType, want)
			c.mustHaveReceivedAll(t)
		}
	}
	some.mustHaveSeenRequestsFor(t, topic{listenersType, aListeners}, topic{listenersType, bListeners},
		topic{listenersType, globOfTP1}, topic{listenersType, someListeners + "baz"})
}

// TestTP1RelayProxyOverWildcards is the example with a control plane without globs: go-control-plane, in
// either form. The listeners have the real type, and the relay requests its wildcard once. Client B may also
// speak SotW, because TP1 calls its request a DiscoveryRequest.
func TestTP1RelayProxyOverWildcards(t *testing.T) {
	const begin = "xdstp://some-authority/envoy.config.listener.v3.Listener/"
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			some, other := startControlPlane(t, upstream), startControlPlane(t, upstream)
			foo, bar, baz := plainListener(begin+"a-listeners/foo", "foo"), plainListener(begin+"a-listeners/bar", "bar"), plainListener(begin+"b-listeners/baz", "baz")
			some.set(foo, bar, baz)
			r := startRelay(t, prelude+fmt.Sprintf(`
authorities:
  - name: some-authority
    servers: [{address: %q, globs: false}]
  - name: other-authority
    servers: [{address: %q}]
`, some.address, other.address))
			a := newClient(t, r, delta, node("a", ""))
			a.subscribe(listenerType, begin+"a-listeners/*")
			a.awaitHas(t, "its listeners", foo, bar)
			for _, f := range []form{delta, sotw} {
				b := newClient(t, r, f, node("b", ""))
				b.subscribe(listenerType, begin+"b-listeners/*")
				b.awaitHas(t, "its listener", baz)
				b.read(func(v *view) {
					if got, want := v.received(listenerType, 0), []string{begin + "b-listeners/baz"}; !slices.Equal(got, want) {
						t.Errorf("the %s client B received %q, want %q", f, got, want)
					}
				})
			}
			a.read(func(v *view) {
				if got, want := v.received(listenerType, 0), []string{begin + "a-listeners/bar", begin + "a-listeners/foo"}; !slices.Equal(got, want) {
					t.Errorf("client A received %q, want %q", got, want)
				}
			})
			some.read(func(s *seen) {
				if len(s.requested) != 1 || s.requested[topic{listenerType, wildcard}] != 1 || s.opened != 1 {
					t.Errorf("want one stream with the wildcard; the control plane has seen %s", s)
				}
			})
		})
	}
}

// TP1: "Alternatives". fooOrBar is the name of some-cluster's endpoints. The relay requests the other two
// names from the two control planes.
const (
	cloudFoo  = "xdstp://some-cloud-authority/envoy.config.endpoint.v3.ClusterLoadAssignment/foo"
	onPremBar = "xdstp://some-onprem-authority/envoy.config.endpoint.v3.ClusterLoadAssignment/bar"
	fooOrBar  = cloudFoo + "#alt=" + onPremBar
)

// alternatives starts a relay for the two control planes. The cluster comes from the cloud's control plane.
func alternatives(t testing.TB, cloud, onprem *controlPlane, failover string) *relay {
	t.Helper()
	return startRelay(t, prelude+fmt.Sprintf(`
authorities:
  - name: some-cloud-authority
    failover: %s
    servers: [{address: %q, backoff: {base: 20ms, max: 100ms}}]
  - name: some-onprem-authority
    servers: [{address: %q, backoff: {base: 20ms, max: 100ms}}]
old_style_names: [{authority: some-cloud-authority}]
`, failover, cloud.address, onprem.address))
}

// mustHaveSeen checks which endpoints the relay has ever requested from a control plane. It may request each
// once on each stream.
func (cp *controlPlane) mustHaveSeen(t testing.TB, names ...string) {
	t.Helper()
	cp.read(func(s *seen) {
		for of := range s.requested {
			if of.typeURL == endpointType && !slices.Contains(names, of.name) {
				t.Errorf("the control plane received requests for %s, want only for %q", of.name, names)
			}
		}
		for _, name := range names {
			if n := s.requested[topic{endpointType, name}]; n == 0 || n > s.opened {
				t.Errorf("the control plane received %d requests for %s on %d streams", n, name, s.opened)
			}
		}
	})
}

// TestTP1Alternatives checks the example's sequence. Normally, the relay requests only the primary. When its
// control plane cannot be reached, the relay requests the alternative from its own authority. The client
// always sees one name.
func TestTP1Alternatives(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			cloud, onprem := startControlPlane(t, upstream), startControlPlane(t, upstream)
			cluster := edsCluster("some-cluster", fooOrBar)
			cloud.set(cluster, plainEndpoints(cloudFoo, 1))
			onprem.set(plainEndpoints(onPremBar, 2))
			// A control plane counts as reachable when a stream is open again, because it may have nothing
			// new to send. So the hysteresis has to be longer than the control plane takes to send the
			// change.
			r := alternatives(t, cloud, onprem, "{policy: unreachable, grace: 1ms, hysteresis: 1s}")
			var clients []*client
			for _, f := range []form{delta, sotw} {
				c := newClient(t, r, f, node("a client", ""))
				c.subscribe(clusterType, "some-cluster")
				c.awaitHas(t, "the cluster", cluster)
				c.subscribe(endpointType, cluster.GetEdsClusterConfig().GetServiceName())
				c.awaitPort(t, fooOrBar, 1)
				clients = append(clients, c)
			}
			cloud.mustHaveSeen(t, cloudFoo)
			onprem.mustHaveSeen(t)

			cloud.stop()
			for _, c := range clients {
				c.awaitPort(t, fooOrBar, 2)
			}
			onprem.mustHaveSeen(t, onPremBar)

			cloud.set(plainEndpoints(cloudFoo, 3))
			cloud.start()
			for _, c := range clients {
				c.awaitPort(t, fooOrBar, 3)
				c.read(func(v *view) {
					if n := len(v.received(endpointType, 0)); n != 3 || len(v.gone) > 0 {
						t.Errorf("the %s client received %v, want the endpoints three times and no removals", c.form, v.log)
					}
				})
			}
			cloud.mustHaveSeen(t, cloudFoo)
			onprem.mustHaveSeen(t, onPremBar)
		})
	}
}

// TestTP1AlternativesAreForWhatIsNotHeld checks the default, which is that of gRFC A71. While a control plane
// is lost, the relay keeps the resources that it holds, and serves the alternative only for others.
func TestTP1AlternativesAreForWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	const other = "xdstp://some-cloud-authority/envoy.config.endpoint.v3.ClusterLoadAssignment/never-asked-for#alt=" + onPremBar
	cloud, onprem := startControlPlane(t, delta), startControlPlane(t, delta)
	cloud.set(plainEndpoints(cloudFoo, 1))
	onprem.set(plainEndpoints(onPremBar, 2))
	r := alternatives(t, cloud, onprem, "{policy: missing, grace: 1ms, hysteresis: 1ms}")
	c := newClient(t, r, delta, node("a client", ""))
	c.subscribe(endpointType, fooOrBar)
	c.awaitPort(t, fooOrBar, 1)
	cloud.stop()
	c.subscribe(endpointType, other)
	c.awaitPort(t, other, 2)
	late := newClient(t, r, delta, node("another client", ""))
	late.subscribe(endpointType, fooOrBar, other)
	late.awaitPort(t, fooOrBar, 1)
	late.awaitPort(t, other, 2)
	c.read(func(v *view) {
		if got := v.received(endpointType, 0); len(got) != 2 || len(v.gone) > 0 {
			t.Errorf("the client received %q, want the two names, each once", got)
		}
	})
	onprem.mustHaveSeen(t, onPremBar)
}
