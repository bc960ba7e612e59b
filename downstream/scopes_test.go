package downstream

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// federatedNames have xdstp names in the scopes of their authorities, and all others in a
// partition by the node's id.
type federatedNames struct{ node *corev3.Node }

// Key implements Names.
func (n federatedNames) Key(typeURL, name string) (cache.Key, error) {
	if !urn.IsXdstp(name) {
		return cache.Key{Scope: cache.Scope{Authority: "cp", Partition: n.node.GetId(), OldStyle: true}, TypeURL: typeURL, Name: name}, nil
	}
	u, err := urn.Unfold(name)
	if err != nil {
		return cache.Key{}, err
	}
	scope := cache.Scope{Authority: u.Key().Authority}
	if strings.Contains(name, "#") {
		scope.Derived = cache.Resolved
	}
	return cache.Key{Scope: scope, TypeURL: typeURL, Name: u.String()}, nil
}

// Close implements Names.
func (federatedNames) Close() {}

func newFederatedServer(ch *cache.Cache) *Server {
	names := func(c Client) Names { return federatedNames{c.Node} }
	return NewServer(ch, names, Options{Log: slog.New(slog.DiscardHandler)})
}

// limitedClient is a client of a listener with limits, on a connection from addr.
func limitedClient(s *Server, form string, addr net.Addr, limits Limits) *testClient {
	c := newTestClient(s, form, &corev3.Node{Id: "n"})
	c.st.grpc = contextStream{ctx: peer.NewContext(context.Background(), &peer.Peer{Addr: addr})}
	c.st.gate = newGate(ListenerOptions{Limits: limits})
	c.st.gate.admit(c.st)
	return c
}

func inAuthority(i int) string { return fmt.Sprintf("xdstp://a%d/%s/x", i, shortName(clusterType)) }

// A scope is free again when the last subscription in it has ended, whichever it was.
func TestScopesOfAStreamAreThoseOfItsSubscriptions(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		rapid.Check(t, func(rt *rapid.T) {
			ch := newTestCache(&recordingSource{}, 1000)
			defer ch.Close()
			server := newFederatedServer(ch)
			addr := &net.TCPAddr{}
			c := limitedClient(server, form, addr, Limits{Scopes: 12, ScopesPerConnection: 15})
			name := rapid.Custom(func(rt *rapid.T) string {
				name := fmt.Sprintf("xdstp://a%d/%s/%s", rapid.IntRange(0, 14).Draw(rt, "authority"), shortName(clusterType), rapid.SampledFrom([]string{"x", "y", "g/*"}).Draw(rt, "id"))
				if rapid.IntRange(0, 4).Draw(rt, "alternative") == 0 {
					name += fmt.Sprintf("#alt=xdstp://a%d/%s/x", rapid.IntRange(0, 14).Draw(rt, "alternative's authority"), shortName(clusterType))
				}
				return name
			})
			for range 20 {
				names := rapid.SliceOfNDistinct(name, 1, 15, rapid.ID[string]).Draw(rt, "names")
				var err error
				if form == sotwForm.name {
					err = c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResourceNames: names, ResponseNonce: c.memory(clusterType).nonce})
				} else {
					var drop []string
					for key := range c.st.deltaKeys(clusterType) {
						if rapid.Bool().Draw(rt, "drop") {
							drop = append(drop, key)
						}
					}
					err = c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: names, ResourceNamesUnsubscribe: drop})
				}
				if err != nil {
					rt.Fatal(err)
				}
				c.readAll(rt)
				expectScopes(rt, c)
			}
			conn := c.st.scopes.conn
			c.close()
			if n := c.st.scopes.len(); n != 0 {
				rt.Fatalf("%d scopes are still used by a stream that has ended", n)
			}
			if conn != nil && (conn.counts.len() != 0 || len(server.conns.open) != 0) {
				rt.Fatalf("%d scopes are still used by a connection without streams", conn.counts.len())
			}
		})
	}
}

// deltaKeys are the keys of a delta session's subscriptions.
func (st *stream) deltaKeys(typeURL string) map[string]bool {
	if s := st.session(typeURL); s != nil {
		return s.Inspect().Names
	}
	return nil
}

// expectScopes counts again what a stream uses.
func expectScopes(rt *rapid.T, c *testClient) {
	var want scopeCounts
	count := func(k cache.Key) {
		for scope := range scopesOf(k) {
			want.add(scope, 1)
		}
	}
	for _, s := range c.st.sessions {
		for _, key := range s.Inspect().Topics {
			count(key)
		}
	}
	got := &c.st.scopes
	if got.len() != want.len() || got.len() > 12 {
		rt.Fatalf("%d scopes are counted, and %d used, of at most 12", got.len(), want.len())
	}
	for i := range 15 {
		scope := cache.Scope{Authority: fmt.Sprint("a", i)}
		if got.get(scope) != want.get(scope) {
			rt.Fatalf("%s is counted %d times, and used %d times", scope, got.get(scope), want.get(scope))
		}
		if on := got.conn; on != nil && (on.counts.get(scope) == 1) != (want.get(scope) > 0) {
			rt.Fatalf("%s is counted %d times for the connection, and used %d times by its only stream", scope, on.counts.get(scope), want.get(scope))
		}
	}
}

// TP2: the same name with other parameters is another set of subscriptions upstream.
func TestDynamicParametersAreScopes(t *testing.T) {
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	c := limitedClient(newFederatedServer(ch), deltaForm.name, nil, Limits{Scopes: 2})
	defer c.close()
	locator := func(env string) *discoveryv3.ResourceLocator {
		return &discoveryv3.ResourceLocator{Name: inAuthority(0), DynamicParameters: map[string]string{"env": env}}
	}
	err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceLocatorsSubscribe: []*discoveryv3.ResourceLocator{locator("a"), locator("b"), locator("c")}})
	if err != nil {
		t.Fatal(err)
	}
	all := c.readAll(t)
	if len(all) != 1 || len(all[0].errors) != 1 || c.st.scopes.len() != 2 {
		t.Errorf("%d scopes are used, and sent is %+v; want two, and one that is refused", c.st.scopes.len(), all)
	}
}

// A refused name is refused alone. A refused partition covers all of a client's old-style names, and their wildcard, so
// the stream ends.
func TestAClientThatMayNotUseItsPartitionLosesItsStream(t *testing.T) {
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	for _, names := range [][]string{{"x"}, {cache.Wildcard}} {
		for _, form := range []string{deltaForm.name, sotwForm.name} {
			c := limitedClient(newFederatedServer(ch), form, nil, Limits{Scopes: 1})
			ask := func(names ...string) error {
				if form == sotwForm.name {
					return c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResourceNames: names})
				}
				return c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: names})
			}
			if err := ask(inAuthority(1), inAuthority(2)); err != nil {
				t.Fatal(err)
			}
			all := c.readAll(t)
			// In SotW that waits: a state with nothing but the error would be an empty one.
			if form == deltaForm.name && (len(all) != 1 || len(all[0].errors) != 1) {
				t.Errorf("%s: sent is %+v, want that one name is refused", form, all)
			}
			err := ask(append(names, inAuthority(1))...)
			want := "2 authorities, partitions and sets of dynamic parameters on this stream, but limits.scopes is 1"
			if status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != want {
				t.Errorf("%s, %q: got %v, want RESOURCE_EXHAUSTED: %s", form, names, err, want)
			}
			c.close()
		}
	}
}

// Connections are compared by the identity of their address value, which gRPC gives to all of their streams. Equal
// addresses are different connections.
func TestAConnectionIsFoundByTheValueOfItsAddress(t *testing.T) {
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	server := newFederatedServer(ch)
	one, two := &net.UnixAddr{}, &net.UnixAddr{}
	var refused []bool
	for i, addr := range []net.Addr{one, one, one, two} {
		c := limitedClient(server, deltaForm.name, addr, Limits{ScopesPerConnection: 2})
		defer c.close()
		if err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{inAuthority(i)}}); err != nil {
			t.Fatal(err)
		}
		refused = append(refused, len(c.readAll(t)) > 0)
	}
	if want := []bool{false, false, true, false}; fmt.Sprint(refused) != fmt.Sprint(want) {
		t.Errorf("refused are %v, want %v", refused, want)
	}
}

// The work for many scopes is the sum of the work for each of them.
func TestManyScopesCostWhatEachOfThemDoes(t *testing.T) {
	work := func(n int) float64 {
		keys := make([]cache.Key, n)
		for i := range keys {
			keys[i].Scope.Authority = fmt.Sprint("a", i)
		}
		return testing.AllocsPerRun(5, func() {
			st := &stream{server: &Server{}, grpc: contextStream{ctx: context.Background()}, limits: &Limits{Scopes: n, ScopesPerConnection: n}}
			st.scopes.stream = st
			for _, k := range keys {
				if e := st.scopes.Enter(k); e != nil {
					t.Error(e)
				}
			}
			for _, k := range keys {
				st.scopes.Leave(k)
			}
			st.scopes.close()
		})
	}
	if n, double := work(10_000), work(20_000); double > 2.2*n+10 {
		t.Errorf("%.0f allocations for 10,000 scopes, %.0f for 20,000", n, double)
	}
}
