package pagetest

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// A change of endpoints touches the clusters, the route and the listener that refer to them, and the clients that
// subscribe to one of these.
func TestAResourceSaysWhatAChangeWouldTouch(t *testing.T) {
	_, b := startBroken(t)
	for _, c := range []struct {
		authority, of, name, want string
		clients                   int
	}{
		{brokenworld.Shop, "endpoint", "cart", "cart front web-routes web", 2},
		{brokenworld.Shop, "secret", "web-certificate", "web", 2},
		{brokenworld.Shop, "listener", "web", "", 2},
		{brokenworld.EU, "cluster", "checkout", "", 1},
	} {
		var s operator.ResourceStatus
		await(t, "all resources are read", func() error {
			if b.document("/api/resource?authority="+c.authority+"&type="+c.of+"&name="+c.name, &s); s.Touches.Cut {
				return fmt.Errorf("it touches %+v", s.Touches)
			}
			return nil
		})
		var names []string
		for _, r := range s.Touches.Resources {
			names = append(names, r.Name)
		}
		if got := strings.Join(names, " "); got != c.want || s.Touches.Total != len(names) || s.Touches.Clients != c.clients || s.Touches.LookedAt != 3 || s.Touches.Streams != 3 {
			t.Errorf("a change of %s touches %s, and %+v; want %s and %d clients", c.name, got, s.Touches, c.want, c.clients)
		}
	}
}

// Resources that clients have only through a wildcard, and to which nothing refers, are unused. So are resources to
// which only those refer.
func TestResourcesThatNothingLeadsToAreListed(t *testing.T) {
	w, b := startBroken(t)
	w.WriteFile(t, brokenworld.Shop, "old.yaml", `
resources:
  - "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: old-all
    connect_timeout: 1s
    cluster_type:
      name: envoy.clusters.aggregate
      typed_config: {"@type": type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig, clusters: [old-one]}
    lb_policy: CLUSTER_PROVIDED
  - {"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: old-one, connect_timeout: 1s}
`)
	list := func(query string) (names []string, next string) {
		var l operator.UnusedList
		b.document("/api/unused?"+query, &l)
		for _, r := range l.Resources {
			names = append(names, r.Name)
		}
		return names, l.Next
	}
	want := []string{"checkout", "old-all", "old-one"}
	await(t, "the list has what is of no use", func() error {
		if got, _ := list(""); !slices.Equal(got, want) {
			return fmt.Errorf("it has %q, want %q", got, want)
		}
		return nil
	})
	if got, _ := list("search=OLD&authority=" + brokenworld.Shop); !slices.Equal(got, want[1:]) {
		t.Errorf("the search finds %q", got)
	}
	first, next := list("limit=2")
	rest, end := list("limit=2&after=" + url.QueryEscape(next))
	if got := append(first, rest...); !slices.Equal(got, want) || end != "" {
		t.Errorf("the pages have %q and %q", first, rest)
	}
	// If a client requests one by its name, that resource is used, and so are the resources that it refers to.
	c := w.Connect(t, &corev3.Node{Id: "asks"}, nil)
	c.Subscribe(t, xdstype.ClusterV3, "old-all")
	c.Await(t, "old-all")
	await(t, "it is of use now", func() error {
		if got, _ := list(""); !slices.Equal(got, want[:1]) {
			return fmt.Errorf("the list has %q", got)
		}
		return nil
	})
}
