package downstream

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

func TestSubscribersHaveWhatTheirClientsRequested(t *testing.T) {
	const glob = "xdstp://a/envoy.config.cluster.v3.Cluster/all/*"
	long := append([]string{"*", glob}, manyNames(100)...)
	topics := newTestCache(silentSource{}, 1<<20)
	t.Cleanup(topics.Close)
	b, _ := newTestServer(topics, DefaultMaxResponseBytes)
	for _, of := range []struct {
		form string
		ask  func(c *testClient) error
		want []string
	}{
		{deltaForm.name, func(c *testClient) error {
			if err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: long}); err != nil {
				return err
			}
			return c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNamesUnsubscribe: long[2:3]})
		}, slices.Concat(long[:2], long[3:])},
		{sotwForm.name, func(c *testClient) error {
			return c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNames: long})
		}, long},
		{sotwForm.name, func(c *testClient) error {
			return c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNames: long})
		}, long},
	} {
		c := newTestClient(b, of.form, &corev3.Node{Id: "n1"})
		if err := of.ask(c); err != nil {
			t.Fatal(err)
		}
		got, ok := c.st.subscriber(len(long))
		if !ok || got.More || len(got.Types) != 1 || got.Node.GetId() != "n1" {
			t.Fatalf("%+v, %v", got, ok)
		}
		slices.Sort(got.Types[0].Names)
		slices.Sort(of.want)
		if !slices.Equal(got.Types[0].Names, of.want) {
			t.Errorf("%s: got %v, want %v", of.form, got.Types[0].Names, of.want)
		}
		if got, _ := c.st.subscriber(3); !got.More || len(got.Types[0].Names) != 3 {
			t.Errorf("of three names at most: %+v", got)
		}
	}
	n := 0
	for range b.Subscribers(1) {
		n++
	}
	if n != 3 {
		t.Errorf("%d subscribers", n)
	}
}

// Clients with the same list share it. A client that has unsubscribed from one of the names is not listed with that
// name.
func TestSubscribersHaveTheNamesThatTheyShare(t *testing.T) {
	topics := newTestCache(silentSource{}, 1<<20)
	t.Cleanup(topics.Close)
	server, _ := newTestServer(topics, DefaultMaxResponseBytes)
	names := manyNames(100)
	var last *groupClient
	for range 3 {
		last = newGroupClient(server, deltaForm.name)
		last.asks(t, names, nil)
	}
	if !last.shares() {
		t.Fatal("the clients share nothing")
	}
	last.asks(t, nil, names[:1])
	n := 0
	for s := range server.Subscribers(len(names)) {
		want := names
		if n++; n == 3 {
			want = names[1:]
		}
		slices.Sort(s.Types[0].Names)
		if want = slices.Sorted(slices.Values(want)); !slices.Equal(s.Types[0].Names, want) {
			t.Errorf("client %d: got %v, want %v", n, s.Types[0].Names, want)
		}
	}
	if n != 3 {
		t.Errorf("%d subscribers", n)
	}
}
