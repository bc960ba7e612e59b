package downstream

import (
	"strconv"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// What waits for a client that does not read is bounded by what it has subscribed
// to, however much changes.
func TestInboxHoldsEachSubscriptionOnce(t *testing.T) {
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	c := newTestClient(server, deltaForm.name, &corev3.Node{})
	defer c.close()
	subscribe(t, c, endpointType, "a", "b", "*")
	for i := range 1000 {
		putEverywhere(ch, endpointType, "a", strconv.Itoa(i))
		putEverywhere(ch, endpointType, "b", strconv.Itoa(i))
	}
	if n := len(c.st.inbox.dirty); n != 3 {
		t.Errorf("3 subscriptions wait as %d", n)
	}
}

// A sender ends when its stream does, also with something left to send: it must
// not look for it again and again.
func TestSenderEndsWithItsStream(t *testing.T) {
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		c := newTestClient(server, form, &corev3.Node{})
		subscribe(t, c, endpointType, "a", "*")
		putEverywhere(ch, endpointType, "a", form)
		c.st.inbox.wake()
		c.close()
		if r := c.st.next(); r != nil || !c.st.inbox.sleep() {
			t.Errorf("%s: the sender goes on after the end", form)
		}
	}
}

// A request or a change between the sender's last look and its end is still processed, by the same sender.
func TestNothingIsMissedWhileTheSenderEnds(t *testing.T) {
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	scope := oldStyleScope("")
	put := func(name, content string) {
		ch.Apply(cache.Update{Scope: scope, TypeURL: endpointType, Changes: []cache.Change{
			{Name: name, Resource: newTestResource(endpointType, name, "", content)},
		}})
	}
	subscribe := func(c *testClient, name string) {
		t.Helper()
		if err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{name}}); err != nil {
			t.Fatal(err)
		}
	}
	for what, happens := range map[string]func(*testClient){
		"a request": func(c *testClient) { subscribe(c, "a") },
		"a change":  func(*testClient) { put("a", "changed") },
	} {
		t.Run(what, func(t *testing.T) {
			c := newTestClient(server, deltaForm.name, &corev3.Node{})
			defer c.close()
			subscribe(c, "a")
			put("a", what)
			if r := c.st.next(); r == nil {
				t.Fatal("no response to the subscription")
			}
			if r := c.st.next(); r != nil {
				t.Fatalf("a second response: %v", decode(t, c.st.form, r))
			}
			happens(c)
			if c.st.inbox.sleep() {
				t.Fatal("the sender ended, and nobody is woken in its place")
			}
			if r := c.st.next(); r == nil {
				t.Fatal("nothing to send after all")
			}
			if r := c.st.next(); r != nil || !c.st.inbox.sleep() {
				t.Fatal("the sender does not end")
			}
		})
	}
}
