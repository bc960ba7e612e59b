package resource

import (
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// A name's spellings have one canonical name, which is that of the topic with the resource.
func TestSpellings(t *testing.T) {
	const begins = "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/"
	for _, c := range []struct{ written, name string }{
		{"n", ""},
		{"n?a=1&b=2", ""},
		{"n?b=2&a=1", "n?a=1&b=2"},
		{"n%2D1", "n-1"},
		{"a%3Ab", "a:b"},
		{"n#alt=" + begins + "m", "n#alt=" + begins + "m"},
		{"n%23alt=" + begins + "m", "n#alt=" + begins + "m"},
		{"n%23alt=xdstp%3A//a/envoy.config.endpoint.v3.ClusterLoadAssignment/m", "n#alt=" + begins + "m"},
		{"n%zz", ""},
	} {
		value, err := proto.Marshal(&clusterv3.Cluster{
			Name: "c", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: begins + c.written},
		})
		if err != nil {
			t.Fatal(err)
		}
		var want []Spelling
		if c.name != "" {
			want = []Spelling{{xdstype.EndpointsV3, begins + c.name, begins + c.written}}
		}
		got := New(Spec{Name: "c", TypeURL: xdstype.ClusterV3, Value: value}).Spellings()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", c.written, got, want)
		}
	}
	old := &clusterv3.Cluster{Name: "c", AltStatName: strings.Repeat("100%#", 10), EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: "100%#"}}
	value, err := proto.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	if maySpell(string(value)) {
		t.Error("a resource without xdstp names is decoded")
	}
}
