package authority

import (
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
)

const views = federation + `
views:
  - match: {type: cluster, wildcard: true}
    when: node.metadata.team == "edge"
    collections: ["xdstp://Onprem:1/envoy.config.cluster.v3.Cluster/edge/*"]
  - match: {type: cluster, wildcard: true}
    when: node.cluster == "mesh"
    collections: ["xdstp://Onprem:1/envoy.config.cluster.v3.Cluster/*", "xdstp://a.b.example.com/envoy.config.cluster.v3.ClusterCollection/c"]
  - match: {glob: "xdstp://fleet/envoy.config.cluster.v3.Cluster/all/*?a=2&b=1"}
    collections: ["xdstp://Onprem:1/envoy.config.cluster.v3.Cluster/*"]
    rename: true
  - match: {list: "xdstp://fleet/envoy.config.cluster.v3.ClusterCollection/all"}
    when: node.cluster == "mesh"
    collections: ["xdstp://Onprem:1/envoy.config.cluster.v3.Cluster/*"]
`

func TestTheFirstViewThatMatchesDecides(t *testing.T) {
	const collectionType = clusterType + "Collection"
	r := router(t, views)
	for _, tt := range []struct {
		rule             string
		cluster, team    string
		typeURL, name    string
		scope, canonical string // no view if empty
	}{
		{"the first", "mesh", "edge", clusterType, "*", "view/0", "*"},
		{"the next, where the first cannot be evaluated", "mesh", "", clusterType, "*", "view/1", "*"},
		{"none for the client", "other", "", clusterType, "*", "", ""},
		{"none for the type", "mesh", "edge", secretType, "*", "", ""},
		{"a glob, in any spelling", "", "", clusterType, "xdstp://fleet/envoy.config.cluster.v3.Cluster/all/*?b=1&a=2", "view/2", "xdstp://fleet/envoy.config.cluster.v3.Cluster/all/*?a=2&b=1"},
		{"a glob with other parameters", "", "", clusterType, "xdstp://fleet/envoy.config.cluster.v3.Cluster/all/*", "", ""},
		{"a glob of another type", "", "", secretType, "xdstp://fleet/envoy.config.cluster.v3.Cluster/all/*?a=2&b=1", "", ""},
		{"a list", "mesh", "", collectionType, "xdstp://fleet/envoy.config.cluster.v3.ClusterCollection/all", "view/3", "xdstp://fleet/envoy.config.cluster.v3.ClusterCollection/all"},
		{"a list for others", "", "", collectionType, "xdstp://fleet/envoy.config.cluster.v3.ClusterCollection/all", "", ""},
		{"a name", "mesh", "edge", clusterType, "xdstp://fleet/envoy.config.cluster.v3.Cluster/all/a", "", ""},
		{"an old-style name", "mesh", "edge", clusterType, "a", "", ""},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			n := node(t, "n", tt.cluster, nil)
			if tt.team != "" {
				n = node(t, "n", tt.cluster, map[string]any{"team": tt.team})
			}
			got, ok := r.View(tt.typeURL, tt.name, r.ViewMatcher(configs.Client{Node: n}))
			want := cache.Key{}
			if tt.scope != "" {
				want = cache.Key{Scope: cache.Scope{Derived: tt.scope}, TypeURL: tt.typeURL, Name: tt.canonical}
			}
			if got != want || ok != (tt.scope != "") {
				t.Errorf("got %+v, %t, want %+v", got, ok, want)
			}
		})
	}
}

// A view's expression is evaluated once for each client, however many names the client
// requests.
func TestAViewIsMatchedOncePerClient(t *testing.T) {
	r := router(t, views)
	n := node(t, "n", "mesh", nil)
	matches := r.ViewMatcher(configs.Client{Node: n})
	const list = "xdstp://fleet/envoy.config.cluster.v3.ClusterCollection/all"
	if _, ok := r.View(clusterType+"Collection", list, matches); !ok {
		t.Error("not matched")
	}
	n.Cluster = "other" // seen by who evaluates again
	if _, ok := r.View(clusterType+"Collection", list, matches); !ok {
		t.Error("evaluated again")
	}
}

func TestViewsAreExplained(t *testing.T) {
	for _, tt := range []struct {
		name, cluster, what, want string
	}{
		{"the second", "mesh", "*", `
views[0] does not match: node.metadata.team == "edge" cannot be evaluated: no such key: team
views[1] matches: node.cluster == "mesh" is true
it is xdstp://Onprem:1/envoy.config.cluster.v3.Cluster/* and xdstp://a.b.example.com/envoy.config.cluster.v3.ClusterCollection/c
authority "Onprem:1": authorities[4]
fed by directory onprem
authority "a.b.example.com": authorities[2], which is *.b.example.com
fed by server b:1 (delta, plaintext)
`},
		{"a glob", "", "xdstp://fleet/envoy.config.cluster.v3.Cluster/all/*?b=1&a=2", `
views[2] matches: it has no when
it is xdstp://Onprem:1/envoy.config.cluster.v3.Cluster/*, renamed by its directory
authority "Onprem:1": authorities[4]
fed by directory onprem
`},
		{"none", "", "*", `
views[0] does not match: node.metadata.team == "edge" cannot be evaluated: no such key: team
views[1] does not match: node.cluster == "mesh" is false
"*" is an old-style name: its meaning depends on the client, here node "n" of cluster "", and on the type, here "type.googleapis.com/envoy.config.cluster.v3.Cluster"
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, _ := router(t, views).Explain(configs.Client{Node: node(t, "n", tt.cluster, nil)}, clusterType, tt.what)
			if want := strings.TrimPrefix(tt.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestViewsAreDescribed(t *testing.T) {
	const want = `views[0]: a client with node.metadata.team == "edge" that requests all resources of type cluster gets xdstp://Onprem:1/envoy.config.cluster.v3.Cluster/edge/*
views[1]: a client with node.cluster == "mesh" that requests all resources of type cluster gets xdstp://Onprem:1/envoy.config.cluster.v3.Cluster/* and xdstp://a.b.example.com/envoy.config.cluster.v3.ClusterCollection/c
views[2]: every client that requests xdstp://fleet/envoy.config.cluster.v3.Cluster/all/*?a=2&b=1 gets xdstp://Onprem:1/envoy.config.cluster.v3.Cluster/*, renamed by its directory
views[3]: a client with node.cluster == "mesh" that requests xdstp://fleet/envoy.config.cluster.v3.ClusterCollection/all gets xdstp://Onprem:1/envoy.config.cluster.v3.Cluster/*
`
	if got := router(t, views).Describe(); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s, want at its end\n%s", got, want)
	}
}
