package configs

import (
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

func rule(t *testing.T, when, partition string) *Rule {
	t.Helper()
	r := &Rule{When: when, Partition: partition}
	if errs := r.compile(); len(errs) > 0 {
		t.Fatal(errs)
	}
	return r
}

func node(t *testing.T) *corev3.Node {
	t.Helper()
	metadata, err := structpb.NewStruct(map[string]any{
		"Namespace": "shop", "edge": true, "count": 3, "LABELS": map[string]any{"version": "v2"}, "tags": []any{"a", "b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Node{
		Id: "envoy-1", Cluster: "edge-a", Locality: &corev3.Locality{Zone: "z1"}, Metadata: metadata,
		UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1.36.0"},
	}
}

func TestWhenLooksAtNodeAndType(t *testing.T) {
	for _, tt := range []struct {
		when, err string
		want      bool
	}{
		{when: "", want: true},
		{when: `node.cluster.startsWith("edge-")`, want: true},
		{when: `node.cluster == "mesh"`},
		{when: `node.locality.zone == "z1" && node.locality.region == ""`, want: true},
		{when: `node.metadata["Namespace"] == "shop"`, want: true},
		{when: `node.metadata.LABELS.version in ["v1", "v2"]`, want: true},
		{when: `node.metadata.edge`, want: true},
		{when: `has(node.metadata.none)`},
		{when: `node.metadata.tags.exists(t, t == "b")`, want: true},
		{when: `node.user_agent_version.startsWith("1.36.")`, want: true},
		{when: `node.id.matches("^envoy-[0-9]+$")`, want: true},
		{when: `type_url.endsWith(".Cluster")`, want: true},
		{when: `node.metadata.none == "x"`, err: "no such key: none"},
		{when: `node.metadata.Namespace`, err: "gives string (want bool)"},
	} {
		got, err := rule(t, tt.when, "").Matches(Client{Node: node(t)}, "type.googleapis.com/envoy.config.cluster.v3.Cluster")
		if text := errorText(err); got != tt.want || text != tt.err {
			t.Errorf("%s: got %t, %q, want %t, %q", tt.when, got, text, tt.want, tt.err)
		}
	}
}

func TestPartitionIsText(t *testing.T) {
	for _, tt := range []struct {
		partition, want, err string
	}{
		{partition: ""},
		{partition: `node.cluster + "/" + node.locality.zone`, want: "edge-a/z1"},
		{partition: `node.metadata.Namespace`, want: "shop"},
		{partition: `string(node.metadata.count)`, want: "3"},
		{partition: `has(node.metadata.none) ? node.metadata.none : "other"`, want: "other"},
		{partition: `node.metadata.none`, err: "no such key: none"},
		{partition: `node.metadata.count`, err: "gives double (want string)"},
	} {
		got, err := rule(t, "", tt.partition).PartitionOf(Client{Node: node(t)}, "")
		if text := errorText(err); got != tt.want || text != tt.err {
			t.Errorf("%s: got %q, %q, want %q, %q", tt.partition, got, text, tt.want, tt.err)
		}
	}
}

func TestANodeThatWasNotSentIsEmpty(t *testing.T) {
	r := rule(t, `node.id == "" && node.locality.zone == ""`, `node.cluster`)
	if got, err := r.Matches(Client{}, ""); !got || err != nil {
		t.Errorf("got %t, %v", got, err)
	}
	if got, err := r.PartitionOf(Client{}, ""); got != "" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// A Node comes from a client, and may be as large as a request.
func TestAnEvaluationIsBounded(t *testing.T) {
	huge := node(t)
	huge.Id = strings.Repeat("a", 1<<20)
	var tags []*structpb.Value
	for range 3000 {
		tags = append(tags, structpb.NewStringValue("x"))
	}
	huge.Metadata.Fields["tags"] = structpb.NewListValue(&structpb.ListValue{Values: tags})
	for _, when := range []string{
		`node.id.matches("(a*)*b")`,
		`node.metadata.tags.all(a, node.metadata.tags.all(b, a == b))`,
		`node.metadata.tags.all(a, !node.id.contains(a))`,
	} {
		_, err := rule(t, when, "").Matches(Client{Node: huge}, "")
		if got, want := errorText(err), "operation cancelled: actual cost limit exceeded"; got != want {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
	_, err := rule(t, "", "node.id").PartitionOf(Client{Node: huge}, "")
	if got, want := errorText(err), "gives 1048576 bytes (want up to 1024)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRulesAreSafeForConcurrentUse(t *testing.T) {
	r, n := rule(t, `node.metadata.Namespace == "shop"`, `node.cluster`), node(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if ok, err := r.Matches(Client{Node: n}, ""); !ok || err != nil {
					t.Errorf("got %t, %v", ok, err)
				}
				if got, err := r.PartitionOf(Client{Node: n}, ""); got != "edge-a" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkRule(b *testing.B) {
	r := &Rule{When: `node.cluster.startsWith("edge-")`, Partition: `node.cluster + "/" + node.locality.zone`}
	if errs := r.compile(); len(errs) > 0 {
		b.Fatal(errs)
	}
	n := &corev3.Node{Cluster: "edge-a", Locality: &corev3.Locality{Zone: "z1"}}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = r.Matches(Client{Node: n}, "")
		_, _ = r.PartitionOf(Client{Node: n}, "")
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
