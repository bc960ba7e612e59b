package relay

import (
	"testing"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
)

// The name of a member shows whose it is, unless the view renames its members.
func TestOriginOfAMemberOfAView(t *testing.T) {
	cfg, err := configs.Parse("relay.yaml", []byte(`
listeners: [{address: "127.0.0.1:18000"}]
authorities: [{name: a, servers: [{address: "a:1"}]}, {name: b, servers: [{address: "b:1"}]}]
views:
  - match: {type: cluster, wildcard: true}
    collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/g/*", "xdstp://b/envoy.config.cluster.v3.Cluster/g/*"]
  - match: {glob: "xdstp://a/envoy.config.cluster.v3.Cluster/all/*"}
    rename: true
    collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/g/*", "xdstp://b/envoy.config.cluster.v3.Cluster/g/*"]
`))
	if err != nil {
		t.Fatal(err)
	}
	g := &generation{cfg: cfg, router: authority.New(cfg)}
	names := leafNames{newest: func() *generation { return g }}
	for _, test := range []struct {
		view         int
		name, origin string
	}{
		{0, "xdstp://b/envoy.config.cluster.v3.Cluster/g/x", "b"},
		{0, "xdstp://a/envoy.config.cluster.v3.Cluster/g/x", "a"},
		{0, "old", ""},
		{0, "xdstp://unknown/envoy.config.cluster.v3.Cluster/g/x", ""},
		{1, "xdstp://a/envoy.config.cluster.v3.Cluster/all/x", ""},
	} {
		k, known := names.Origin(cache.Key{Scope: cache.Scope{Derived: g.router.ViewScope(test.view)}, TypeURL: clusterTypeURL, Name: test.name})
		if known != (test.origin != "") || k.Scope.Authority != test.origin {
			t.Errorf("%q of view %d is of %v, %t, want %q", test.name, test.view, k, known, test.origin)
		}
	}
}
