package graph

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

func TestReferencesOfResources(t *testing.T) {
	text, err := os.ReadFile("testdata/references.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Rule       string
		Resource   json.RawMessage
		References []string
	}
	if err := yaml.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 10 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Rule, func(t *testing.T) {
			var resource anypb.Any
			if err := protojson.Unmarshal(c.Resource, &resource); err != nil {
				t.Fatal(err)
			}
			found, err := References(resource.TypeUrl, resource.Value)
			if err != nil {
				t.Fatal(err)
			}
			if got := lines(found); !slices.Equal(got, c.References) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.References, "\n  "))
			}
		})
	}
}

func lines(references []Reference) (all []string) {
	for _, r := range references {
		line := fmt.Sprintf("%s -> %s %s", r.Path, xdstype.Word(r.To.TypeURL), r.To.Name)
		line += map[Source]string{Elsewhere: " from elsewhere", Bootstrap: " from the bootstrap"}[r.Source]
		if r.Many {
			line += " many"
		}
		if r.Optional {
			line += " optional"
		}
		all = append(all, line)
	}
	return all
}

// The default_target of gRPC's route lookup is a cluster. Its messages are internal to gRPC.
func TestRouteLookupNamesItsDefaultTarget(t *testing.T) {
	config := protowire.AppendTag(nil, 9, protowire.BytesType)
	config = protowire.AppendString(config, "fallback")
	specifier := protowire.AppendTag(nil, 1, protowire.BytesType)
	specifier = protowire.AppendBytes(specifier, config)
	routes := &routev3.RouteConfiguration{Name: "r", ClusterSpecifierPlugins: []*routev3.ClusterSpecifierPlugin{{
		Extension: &corev3.TypedExtensionConfig{Name: "rls", TypedConfig: &anypb.Any{TypeUrl: lookupPlugin, Value: specifier}},
	}}}
	want := "cluster_specifier_plugins[0].extension.typed_config.route_lookup_config.default_target -> cluster fallback"
	found, err := ReferencesIn(routes)
	if got := lines(found); err != nil || !slices.Equal(got, []string{want}) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWhatCannotBeReadHasAnErrorAndNoReferences(t *testing.T) {
	if refs, err := References(xdstype.RouteV3, []byte{0x0a, 0xff}); err == nil || refs != nil {
		t.Errorf("got %v, %v", refs, err)
	}
	if refs, err := References("type.googleapis.com/nobody.Knows", []byte{0x0a, 0xff}); err != nil || refs != nil {
		t.Errorf("got %v, %v", refs, err)
	}
}

// The walk through deeply nested Anys ends.
func TestAnysInAnysEnd(t *testing.T) {
	inner, err := anypb.New(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{Routes: []*routev3.Route{{
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "c"}}},
	}}}}})
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		value, err := proto.Marshal(&corev3.TypedExtensionConfig{Name: "x", TypedConfig: inner})
		if err != nil {
			t.Fatal(err)
		}
		inner = &anypb.Any{TypeUrl: xdstype.ExtensionConfigV3, Value: value}
	}
	if refs, err := References(inner.TypeUrl, inner.Value); err != nil || len(refs) != 0 {
		t.Errorf("got %v, %v", refs, err)
	}
}

// The size of a resource bounds the memory of its references: paths may be long, with many references below them.
func TestReferencesOfALargeResourceAreBounded(t *testing.T) {
	routes := func(key string, clusters int) []byte {
		aggregate := &aggregatev3.ClusterConfig{}
		for range clusters {
			aggregate.Clusters = append(aggregate.Clusters, "c")
		}
		config, err := anypb.New(aggregate)
		if err != nil {
			t.Fatal(err)
		}
		value, err := proto.Marshal(&routev3.RouteConfiguration{TypedPerFilterConfig: map[string]*anypb.Any{key: config}})
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	found, err := References(xdstype.RouteV3, routes(strings.Repeat("long", 100_000), 1000))
	if err != nil || len(found) != 1000 {
		t.Fatalf("found %d references (%v), want 1000", len(found), err)
	}
	const longest = 200
	for _, r := range found {
		if !strings.HasPrefix(r.Path, "typed_per_filter_config[") || len(r.Path) > longest {
			t.Fatalf("the path has %d bytes: %.200s", len(r.Path), r.Path)
		}
	}
	paths, n := 0, mostReferences
	for range 2 {
		if found, err = References(xdstype.RouteV3, routes(strings.Repeat("k", longestKey), n)); (err != nil) != (n > mostReferences) || len(found) != mostReferences {
			t.Errorf("of %d references, %d are found (%v)", n, len(found), err)
		}
		for _, r := range found {
			paths += len(r.Path)
		}
		if paths == 0 || paths > mostPaths {
			t.Errorf("the paths have %d bytes, want at most %d", paths, mostPaths)
		}
		n, paths = n+1, 0
	}
}
