package downstream

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/identity"
)

// subscribes sends a request in delta, and returns what its client is refused with.
func (c *testClient) subscribes(t tb, typeURL string, add, drop []string) string {
	t.Helper()
	err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: add, ResourceNamesUnsubscribe: drop})
	if err != nil && status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("the stream ended: %v", err)
	}
	c.readAll(t)
	return status.Convert(err).Message()
}

// listed is an update of all names in a list.
func listed(content string, names []string) cache.Update {
	u := cache.Update{Scope: oldStyleScope(""), TypeURL: clusterType}
	for _, name := range names {
		u.Changes = append(u.Changes, cache.Change{Name: name, Resource: newTestResource(clusterType, name, "", content)})
	}
	return u
}

// A client that opens more streams may subscribe to no more names.
func TestAnIdentityHasItsNamesOnceOnAllConnections(t *testing.T) {
	for _, tt := range counted {
		source := &recordingSource{}
		ch := newTestCache(source, 1000)
		server := newFederatedServer(ch)
		g := newGate(ListenerOptions{PerIdentity: IdentityLimits{Subscriptions: 6}})
		one, _ := identified(t, server, g, &tt.one, tt.at)
		two, _ := identified(t, server, g, &tt.two, tt.from)
		expect := func(what, got, want string) {
			t.Helper()
			if !tt.same {
				want = ""
			}
			if got != want {
				t.Errorf("%s: %s: got %q, want %q", tt.name, what, got, want)
			}
		}
		expect("three names", one.subscribes(t, clusterType, []string{"a", "b", "c"}, nil), "")
		expect("two of another type", two.subscribes(t, endpointType, []string{"a", "b"}, nil), "")
		expect("names that are there", two.subscribes(t, endpointType, []string{"a", "b"}, nil), "")
		one.subscribes(t, clusterType, nil, []string{"a", "b"})
		expect("two in the place of two others", two.subscribes(t, endpointType, []string{"c", "d"}, nil), "")
		const tooMany = "7 names subscribed to by this identity, but limits.subscriptions_per_identity is 6"
		expect("two too many", two.subscribes(t, endpointType, []string{"e", "f"}, nil), tooMany)
		if events := strings.Join(source.take(), "\n"); tt.same && strings.Contains(events, " f") {
			t.Errorf("%s: the control plane is asked for what is refused", tt.name)
		}
		two.depart()
		expect("with the names of a stream that has ended", one.subscribes(t, clusterType, []string{"e", "f", "g", "h"}, nil), "")
		one.depart()
		for _, u := range []*identityUse{one.st.uses, two.st.uses} {
			if u.names.n+len(u.names.shared) != 0 {
				t.Errorf("%s: %d names are left", tt.name, u.names.n)
			}
		}
		ch.Close()
	}
}

// All clients with one list of names cost what one costs.
func TestAListOfNamesCountsOnceForAnIdentity(t *testing.T) {
	ch := newTestCache(silentSource{}, 1000)
	defer ch.Close()
	server := newFederatedServer(ch)
	g := newGate(ListenerOptions{PerIdentity: IdentityLimits{Subscriptions: 5}})
	id := &identity.Identity{Source: identity.MTLS, Subject: "fleet"}
	list, other := []string{"a", "b"}, []string{"c", "d"}
	put := func(names []string) { ch.Apply(listed("1", names)) }
	open := func() *testClient {
		c, err := identified(t, server, g, id, at("10.0.0.1"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var clients []*testClient
	for range 10 {
		c := open()
		if refused := c.subscribes(t, clusterType, list, nil); refused != "" {
			t.Fatalf("client %d is refused: %s", len(clients), refused)
		}
		put(list)
		clients = append(clients, c)
	}
	clients[0].depart() // which was the first, and watches its names alone
	if refused := open().subscribes(t, clusterType, other, nil); refused != "" {
		t.Errorf("two names more are refused: %s", refused)
	}
	const tooMany = "6 names subscribed to by this identity, but limits.subscriptions_per_identity is 5"
	if refused := open().subscribes(t, clusterType, []string{"e", "f"}, nil); refused != tooMany {
		t.Errorf("got %q, want %q", refused, tooMany)
	}
}

// Whatever its streams do, the count of an identity's names is right.
func TestNamesOfAnIdentityAreCountedAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ch := newTestCache(silentSource{}, 1000)
		defer ch.Close()
		server := newFederatedServer(ch)
		g := newGate(ListenerOptions{PerIdentity: IdentityLimits{Subscriptions: 8}})
		uses := &identityUse{}
		var open []*testClient
		lists := [][]string{{"a", "b"}, {"a", "b", "c"}, {"d"}, {"xdstp://a/envoy.config.cluster.v3.Cluster/x/*"}}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				c := newTestClient(server, deltaForm.name, &corev3.Node{Id: "n"})
				c.st.uses = uses
				c.st.gate = g
				g.admit(c.st)
				open = append(open, c)
			case 1:
				ch.Apply(listed(fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "version")), rapid.SampledFrom(lists[:3]).Draw(t, "names")))
			default:
				if len(open) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "client")
				draw := func(what string) []string { return rapid.SampledFrom(append(lists, nil)).Draw(t, what) }
				refused := rapid.IntRange(0, 5).Draw(t, "ends") == 0
				if !refused {
					refused = open[i].subscribes(t, rapid.SampledFrom([]string{clusterType, endpointType}).Draw(t, "type"), draw("add"), draw("drop")) != ""
				}
				if refused {
					open[i].close()
					open = append(open[:i], open[i+1:]...)
				}
			}
			n, cost := 0, 0
			shared := map[any]int{}
			for _, c := range open {
				for _, sess := range c.st.sessions {
					n += sess.SubscribedAlone()
					cost += costOf(sess.SubscribedAlone(), sess.NameBytes())
					bytes := 0
					for name := range sess.Inspect().Names {
						bytes += len(name)
					}
					if !sess.Inspect().Shares && sess.NameBytes() != bytes {
						t.Fatalf("the names have %d bytes, counted are %d", bytes, sess.NameBytes())
					}
					if list := sess.SharedList(); list != nil {
						if shared[list] == 0 {
							cost += costOfList(list)
						}
						shared[list] = len(list.All())
					}
				}
			}
			for _, names := range shared {
				n += names
			}
			if uses.names.cost != cost {
				t.Fatalf("the names cost %d, counted is %d", cost, uses.names.cost)
			}
			if uses.names.n != n || uses.names.n > 8 || len(uses.names.shared) != len(shared) {
				t.Fatalf("%d names and %d lists are counted, and there are %d and %d", uses.names.n, len(uses.names.shared), n, len(shared))
			}
		}
	})
}
