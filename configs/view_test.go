package configs

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

func TestViewsComeInCanonicalSpelling(t *testing.T) {
	c := mustParse(t, head+`
views:
- match: {glob: "xdstp://f/envoy.config.cluster.v3.Cluster/a%3Ab/*?z=1&a=2"}
  collections: ["xdstp://cp/envoy.config.cluster.v3.Cluster/a%3Ab/*#alt=xdstp://cp/envoy.config.cluster.v3.ClusterCollection/c%3Ad"]
- match: {list: "xdstp://f/envoy.config.cluster.v3.ClusterCollection/a%3Ab"}
  collections: ["xdstp://cp/envoy.config.cluster.v3.Cluster/*"]
- match: {type: CDS, wildcard: true}
  collections: ["xdstp://cp/envoy.config.cluster.v3.Cluster/*"]
`)
	const cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	for i, want := range []ViewMatch{
		{Glob: "xdstp://f/envoy.config.cluster.v3.Cluster/a:b/*?a=2&z=1"},
		{List: "xdstp://f/envoy.config.cluster.v3.ClusterCollection/a:b"},
		{Type: cluster, Wildcard: true},
	} {
		if v := &c.Views[i]; v.Match != want || v.ResourceType() != cluster {
			t.Errorf("got %+v of %s, want %+v", v.Match, v.ResourceType(), want)
		}
	}
	if got, want := c.Views[0].Collections[0], "xdstp://cp/envoy.config.cluster.v3.Cluster/a:b/*#alt=xdstp://cp/envoy.config.cluster.v3.ClusterCollection/c:d"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestViewsAreForTheClientsOfTheirCondition(t *testing.T) {
	c := mustParse(t, head+`
views:
- match: {type: cluster, wildcard: true}
  when: node.cluster == "edge" && type_url.endsWith(".Cluster")
  `+viewed+`
- match: {type: cluster, wildcard: true}
  when: node.metadata.team == "a"
  `+viewed+`
- match: {type: cluster, wildcard: true}
  `+viewed+`
`)
	node := &corev3.Node{Cluster: "edge"}
	for i, want := range []struct {
		matches bool
		err     string
	}{{true, ""}, {false, "no such key: team"}, {true, ""}} {
		got, err := c.Views[i].Matches(Client{Node: node})
		if text := errorText(err); got != want.matches || text != want.err {
			t.Errorf("views[%d]: got %t, %q, want %t, %q", i, got, text, want.matches, want.err)
		}
	}
	if got, err := c.Views[0].Matches(Client{}); got || err != nil {
		t.Errorf("without a Node: got %t, %v", got, err)
	}
}
