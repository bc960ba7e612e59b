package integration

// TP1, "Collections": the sequences of "List" and "Glob", with listeners of the real type; and TP1's examples
// for clients that do not support collections.

import (
	"fmt"
	"slices"
	"testing"
)

const (
	realListeners  = "xdstp://some-authority/envoy.config.listener.v3.Listener/"
	realCollection = "xdstp://some-authority/envoy.config.listener.v3.ListenerCollection/foo"
)

// TestTP1ListWithContextParameters checks the sequence of "List". The collection comes with the context
// parameters of the request, and its members without them.
func TestTP1ListWithContextParameters(t *testing.T) {
	const collection = `
resources:
- version: 1
  name: xdstp://some-authority/envoy.config.listener.v3.ListenerCollection/foo%s
  resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.ListenerCollection
    entries:
    - locator: xdstp://some-authority/envoy.config.listener.v3.Listener/bar
    - locator: xdstp://some-authority/envoy.config.listener.v3.Listener/baz%s
`
	const members = `
resources:
- version: 1
  name: xdstp://some-authority/envoy.config.listener.v3.Listener/bar
  resource: {"@type": type.googleapis.com/envoy.config.listener.v3.Listener, payload: bar}
- version: 1
  name: xdstp://some-authority/envoy.config.listener.v3.Listener/baz
  resource: {"@type": type.googleapis.com/envoy.config.listener.v3.Listener, payload: baz}
`
	with, without := fmt.Sprintf(collection, "?some=thing", ""), fmt.Sprintf(collection, "", "-for-all")
	some := startTP1Plane(t, slices.Concat(resources(t, with), resources(t, without), resources(t, members))...)
	other := startTP1Plane(t)
	r := twoAuthorities(t, some.port, other.port, "")
	c := openTP1Client(t, r.address)
	const collectionType = listenerType + "Collection"
	c.subscribe(collectionType, realCollection+"?some=thing")
	c.awaitPrinted(t, collectionType, with)
	c.subscribe(listenerType, realListeners+"bar", realListeners+"baz")
	c.awaitPrinted(t, listenerType, members)
	c.subscribe(collectionType, realCollection)
	c.awaitPrinted(t, collectionType, without)

	// The order of parameters does not matter. A collection has no name inside that the relay would have to
	// rewrite.
	const one, another = "?some=thing&more=things", "?more=things&some=thing"
	some.set(resources(t, fmt.Sprintf(collection, one, "-for-more"))...)
	c.subscribe(collectionType, realCollection+another)
	c.awaitPrinted(t, collectionType, fmt.Sprintf(collection, another, "-for-more"))
	c.mustHaveReceivedAll(t)
	some.mustHaveSeenRequestsFor(t, topic{collectionType, realCollection + "?some=thing"}, topic{collectionType, realCollection},
		topic{collectionType, realCollection + another}, topic{listenerType, realListeners + "bar"}, topic{listenerType, realListeners + "baz"})
}

// TestTP1GlobWithContextParameters checks that `foo/*?some=thing` matches `foo/bar?some=thing` and not
// `foo/bar`, also if the control plane sends the relay both.
func TestTP1GlobWithContextParameters(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			matches, other := plainListener(realListeners+"foo/bar?some=thing", "matches"), plainListener(realListeners+"foo/bar", "does not")
			some := startControlPlane(t, upstream)
			some.set(matches, other, plainListener(realListeners+"foo/bar/deeper?some=thing", "does not"))
			r := startRelay(t, prelude+fmt.Sprintf("\nauthorities: [{name: some-authority, servers: [{address: %q, globs: false}]}]\n", some.address))
			for _, f := range []form{delta, sotw} {
				c := newClient(t, r, f, node("a client", ""))
				c.subscribe(listenerType, realListeners+"foo/*?some=thing")
				c.awaitHas(t, "the member", matches)
				c.read(func(v *view) {
					if got, want := v.names(listenerType), []string{nameOf(matches)}; !slices.Equal(got, want) {
						t.Errorf("the %s client has %q, want %q", f, got, want)
					}
				})
			}
		})
	}
}

// TestTP1ExamplesInAView checks that a wildcard client receives the members of TP1's list and glob, of two
// authorities, through a view. Among them are located, inlined and redirected members; each comes once. The
// inlined member has the name inside the resource.
func TestTP1ExamplesInAView(t *testing.T) {
	const ofSome = `
resources:
- version: 1
  name: xdstp://some-authority/envoy.config.listener.v3.ListenerCollection/foo
  resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.ListenerCollection
    entries:
    - locator: xdstp://some-authority/envoy.config.listener.v3.Listener/bar
    - locator: xdstp://other-authority/envoy.config.listener.v3.Listener/baz
    - inline_entry:
        name: inlined
        version: 8.5.4
        resource: {"@type": type.googleapis.com/envoy.config.listener.v3.Listener, payload: inlined}
- version: 1
  name: xdstp://some-authority/envoy.config.listener.v3.Listener/bar
  resource: {"@type": type.googleapis.com/envoy.config.listener.v3.Listener, payload: bar}
- version: 42
  name: xdstp://some-authority/envoy.config.listener.v3.Listener/my-listeners/redirected
  resource: {"@type": type.googleapis.com/xds.core.v3.ResourceLocator, locator: "xdstp://other-authority/envoy.config.listener.v3.Listener/baz"}
`
	const ofOther = `
resources:
- version: 7
  name: xdstp://other-authority/envoy.config.listener.v3.Listener/baz
  resource: {"@type": type.googleapis.com/envoy.config.listener.v3.Listener, payload: %s}
`
	some, other := startTP1Plane(t, resources(t, ofSome)...), startTP1Plane(t, resources(t, fmt.Sprintf(ofOther, "baz"))...)
	r := twoAuthorities(t, some.port, other.port, `
views:
  - match: {type: listener, wildcard: true}
    collections: [`+realCollection+`, "`+realListeners+`my-listeners/*"]
`)
	const baz = "xdstp://other-authority/envoy.config.listener.v3.Listener/baz"
	for _, f := range []form{delta, sotw} {
		c := newClient(t, r, f, node("an Envoy", ""))
		c.subscribe(listenerType, wildcard)
		c.awaitHas(t, "the union", plainListener(realListeners+"bar", "bar"), plainListener(baz, "baz"),
			plainListener("inlined", "inlined"), plainListener(realListeners+"my-listeners/redirected", "baz"))
		c.read(func(v *view) {
			if n := len(v.received(listenerType, 0)); n != 4 {
				t.Errorf("the %s client received %v, want each of the four listeners once", f, v.log)
			}
		})
		changed := "changed for " + string(f)
		other.set(resources(t, fmt.Sprintf(ofOther, changed))...)
		c.awaitHas(t, "a change in the other authority", plainListener(baz, changed), plainListener(realListeners+"my-listeners/redirected", changed))
		other.set(resources(t, fmt.Sprintf(ofOther, "baz"))...)
		c.awaitHas(t, "the old listener again", plainListener(baz, "baz"))
	}
	const collectionType = listenerType + "Collection"
	some.mustHaveSeenRequestsFor(t, topic{collectionType, realCollection}, topic{listenerType, realListeners + "bar"}, topic{listenerType, realListeners + "my-listeners/*"})
	other.mustHaveSeenRequestsFor(t, topic{listenerType, baz})
}

// TestTP1RedirectedList checks that a client receives a list collection, and an entry of it, through a
// redirect to another authority. TP1: "Server redirects".
func TestTP1RedirectedList(t *testing.T) {
	const redirect = `
resources:
- version: 42
  name: xdstp://some-authority/envoy.config.listeners.v3.ListenerCollection/foo
  resource:
    "@type": type.googleapis.com/xds.core.v3.ResourceLocator
    locator: xdstp://other-authority/envoy.config.listeners.v3.ListenerCollection/moved
`
	const collection = `
resources:
- name: xdstp://%s
  resource:
    "@type": type.googleapis.com/envoy.config.listeners.v3.ListenerCollection
    entries:
    - inline_entry:
        name: bar
        version: 8.5.4
        resource: {"@type": type.googleapis.com/envoy.config.listeners.v3.Listener, payload: bar}
`
	const bar = `
resources:
- name: xdstp://some-authority/envoy.config.listeners.v3.ListenerCollection/foo#entry=bar
  resource: {"@type": type.googleapis.com/envoy.config.listeners.v3.Listener, payload: bar}
`
	const moved = "other-authority/envoy.config.listeners.v3.ListenerCollection/moved"
	some, other := startTP1Plane(t, resources(t, redirect)...), startTP1Plane(t, resources(t, fmt.Sprintf(collection, moved))...)
	r := twoAuthorities(t, some.port, other.port, "")
	c := openTP1Client(t, r.address)
	c.subscribe(listenersCollectionType, someCollection)
	c.awaitPrinted(t, listenersCollectionType, fmt.Sprintf(collection, "some-authority/envoy.config.listeners.v3.ListenerCollection/foo"))
	c.subscribe(listenersType, someCollection+"#entry=bar")
	c.awaitPrinted(t, listenersType, bar)
	some.mustHaveSeenRequestsFor(t, topic{listenersCollectionType, someCollection})
	other.mustHaveSeenRequestsFor(t, topic{listenersCollectionType, "xdstp://" + moved})
	c.mustHaveReceivedAll(t)
}
