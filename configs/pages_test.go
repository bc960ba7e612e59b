package configs

// The pages about partitions and about control planes, and what their examples do.

import (
	"os"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

func readPage(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile("../docs/" + name + ".md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// rulesOf returns the rules that a page shows by themselves.
func rulesOf(t *testing.T, page string) []Rule {
	t.Helper()
	const prelude = `
listeners: [{address: ":18000"}]
authorities:
  - {name: istiod, servers: [{address: "istiod:15010"}]}
  - {name: edge, servers: [{address: "edge:18000"}]}
`
	for _, block := range strings.Split(page, "```yaml\n")[1:] {
		if block, _, _ = strings.Cut(block, "```"); strings.HasPrefix(block, "old_style_names:") {
			return mustParse(t, prelude+block).OldStyleNames
		}
	}
	t.Fatal("the page shows no rules")
	return nil
}

func TestPagesOfControlPlanesShowTheirExamples(t *testing.T) {
	for name, page := range map[string]string{"istio": "istio", "istio-identity": "istio", "contour": "contour", "envoy-gateway": "envoy-gateway", "fleet": "fleet"} {
		example, err := os.ReadFile("examples/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		_, shown, _ := strings.Cut(string(example), "\n") // without the line for editors
		if !strings.Contains(readPage(t, page), "```yaml\n"+shown+"```") {
			t.Errorf("docs/%s.md does not show examples/%s.yaml as it is", page, name)
		}
	}
}

// partitionOf returns the partition of a node by the first rule that matches it, and whether
// the whole Node goes upstream.
func partitionOf(t *testing.T, rules []Rule, node *corev3.Node) (partition string, whole bool) {
	t.Helper()
	for i := range rules {
		if ok, err := rules[i].Matches(Client{Node: node}, "type.googleapis.com/envoy.config.cluster.v3.Cluster"); err != nil || !ok {
			continue
		}
		partition, err := rules[i].PartitionOf(Client{Node: node}, "")
		if err != nil {
			t.Fatal(err)
		}
		return partition, rules[i].Upstream().Whole()
	}
	t.Fatalf("no rule is for %v", node)
	return "", false
}

func TestExamplesShareWhatTheirControlPlanesGiveAlike(t *testing.T) {
	pod := func(id, app, zone string) *corev3.Node {
		metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "WORKLOAD_NAME": app, "LABELS": map[string]any{"version": "v1"}})
		if err != nil {
			t.Fatal(err)
		}
		n := &corev3.Node{Id: id, Cluster: app + ".shop", Metadata: metadata}
		if zone != "" {
			n.Locality = &corev3.Locality{Zone: zone}
		}
		return n
	}
	example := func(name string) []Rule {
		c, err := Load("examples/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		return c.OldStyleNames
	}
	for _, tt := range []struct {
		rule  string
		rules []Rule
		a, b  *corev3.Node
		share bool
		whole bool
	}{
		{"Istio's pods are for themselves", example("istio"), pod("a", "cart", "z"), pod("b", "cart", "z"), false, true},
		{"Istio's pods of one workload and zone may share", rulesOf(t, readPage(t, "istio")), pod("a", "cart", "z"), pod("b", "cart", "z"), true, true},
		{"not those of another workload of the same namespace and version", rulesOf(t, readPage(t, "istio")), pod("a", "cart", "z"), pod("b", "pay", "z"), false, true},
		{"nor of another zone", rulesOf(t, readPage(t, "istio")), pod("a", "cart", "z"), pod("b", "cart", "y"), false, true},
		{"nor without a locality", rulesOf(t, readPage(t, "istio")), pod("a", "cart", ""), pod("b", "cart", ""), false, true},
		{"Contour's Envoys are alike", example("contour"), pod("a", "cart", "z"), pod("b", "pay", "y"), true, false},
		{"those of one Gateway are alike", example("envoy-gateway"), pod("a", "cart", "z"), pod("b", "cart", "y"), true, false},
		{"those of two Gateways are not", example("envoy-gateway"), pod("a", "cart", "z"), pod("b", "pay", "z"), false, false},
		{"who has no role is for himself", example("partitions"), pod("a", "cart", "z"), pod("b", "cart", "z"), false, true},
	} {
		a, whole := partitionOf(t, tt.rules, tt.a)
		b, _ := partitionOf(t, tt.rules, tt.b)
		if (a == b) != tt.share || whole != tt.whole {
			t.Errorf("%s: partitions %q and %q, the whole Node goes upstream: %t", tt.rule, a, b, whole)
		}
	}
	rules := rulesOf(t, readPage(t, "partitions"))
	if got, _ := partitionOf(t, rules, &corev3.Node{Cluster: "edge-a", Locality: &corev3.Locality{Zone: "z"}}); got != "edge-a/z" {
		t.Errorf("docs/partitions.md: got partition %q", got)
	}
}
