package authority

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/configs"
)

const policies = `
listeners: [{address: ":18000"}]
authorities:
  - name: passes
    directory: a
  - name: drops
    directory: a
    context_parameters: {drop: [xds.node.id, "debug.*"]}
  - name: keeps
    directory: a
    context_parameters: {keep: [shard, "env*"], require: [shard]}
  - name: "*.strict"
    directory: a
    context_parameters: {require: [shard, "env*"]}
  - name: mixed
    directory: a
    context_parameters: {drop: ["xa*"], require: ["x*"]}
  - name: bare
    directory: a
    context_parameters: {drop: ["*"]}
`

func TestContextParametersGoByThePolicyOfTheirAuthority(t *testing.T) {
	const id = "/envoy.config.cluster.v3.Cluster/x"
	for _, tt := range []struct{ authority, params, want, err string }{
		{"passes", "?xds.node.id=n", "?xds.node.id=n", ""},
		{"drops", "", "", ""},
		{"drops", "?xds.node.id=n", "", ""},
		{"drops", "?xds.node.idle=n&debug=1", "?debug=1&xds.node.idle=n", ""},
		{"drops", "?xds%2Enode%2Eid=n&debug.=1&debug.x=2&shard=3", "?shard=3", ""},
		{"keeps", "?shard=1&xds.node.id=n&env=e&environment=f&a=1", "?env=e&environment=f&shard=1", ""},
		{"keeps", "?env=e", "", `authority "keeps" requires the context parameter shard`},
		{"a.strict", "?environment=e&shard=1&a=1", "?a=1&environment=e&shard=1", ""},
		{"a.strict", "?a=1", "", `authority "a.strict" requires the context parameter shard, and env*`},
		{"mixed", "?x=1&xa=1", "?x=1", ""},
		{"mixed", "?xa=1", "", `authority "mixed" requires the context parameter x*`},
		{"bare", "?b=1&a=2", "", ""},
		{"drops", "/*?xds.node.id=n&shard=3", "/*?shard=3", ""}, // a glob
	} {
		name := "xdstp://" + tt.authority + id + tt.params
		route, err := router(t, policies).Xdstp(name)
		if tt.err != "" {
			if want := fmt.Sprintf("xdstp name %q: %s", name, tt.err); err == nil || err.Error() != want {
				t.Errorf("%s: got %v, want %s", name, err, want)
			}
			continue
		}
		if want := "xdstp://" + tt.authority + id + tt.want; err != nil || route.Key.Name != want {
			t.Errorf("%s: got %q, %v, want %q", name, route.Key.Name, err, want)
		}
	}
}

// A name without the parameters that a policy drops is routed to itself, so that redirects and
// names in lists can pass the policy any number of times. The order of the keys in names and
// policies does not matter.
func TestAPolicyIsIdempotentAndKnowsNoOrder(t *testing.T) {
	keys := []string{"a", "ab", "abc", "b", "b.c", "c&d", "é"}
	rapid.Check(t, func(t *rapid.T) {
		entry := rapid.Custom(func(t *rapid.T) string {
			return rapid.SampledFrom(keys).Draw(t, "key") + rapid.SampledFrom([]string{"", "*"}).Draw(t, "star")
		})
		entries := rapid.SliceOfNDistinct(entry, 1, 4, rapid.ID).Draw(t, "entries")
		kind := rapid.SampledFrom([]string{"drop", "keep"}).Draw(t, "kind")
		params := rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 0, len(keys), rapid.ID).Draw(t, "params")
		routed := func(entries, params []string) string {
			r := routerForProperty(t, kind, entries)
			name := "xdstp://a/t/x"
			for i, p := range params {
				separator := "&"
				if i == 0 {
					separator = "?"
				}
				name += separator + strings.ReplaceAll(p, "&", "%26") + "=" + strings.ReplaceAll(p, "&", "%26")
			}
			once, err := r.Xdstp(name)
			if err != nil {
				t.Fatal(err)
			}
			if twice, err := r.Xdstp(once.Key.Name); err != nil || twice != once {
				t.Fatalf("%s is routed to %+v, and that to %+v, %v", name, once, twice, err)
			}
			for _, p := range params {
				drops := slices.ContainsFunc(entries, func(e string) bool {
					return e == p || strings.HasSuffix(e, "*") && strings.HasPrefix(p, e[:len(e)-1])
				}) == (kind == "drop")
				if kept := slices.Contains(slices.Collect(once.Key.ParamKeys()), p); kept == drops {
					t.Fatalf("%s %v makes %s of %s", kind, entries, once.Key.Name, name)
				}
			}
			return once.Key.Name
		}
		a := routed(entries, params)
		if b := routed(rapid.Permutation(entries).Draw(t, "other entries"), rapid.Permutation(params).Draw(t, "other params")); a != b {
			t.Fatalf("in another order %s is %s", a, b)
		}
	})
}

func routerForProperty(t *rapid.T, kind string, entries []string) *Router {
	t.Helper()
	quoted := make([]string, len(entries))
	for i, e := range entries {
		quoted[i] = fmt.Sprintf("%q", e)
	}
	cfg, err := configs.Parse("relay.yaml", []byte(fmt.Sprintf("listeners: [{address: ':1'}]\nauthorities: [{name: a, directory: a, context_parameters: {%s: [%s]}}]\n", kind, strings.Join(quoted, ", "))))
	if err != nil {
		t.Fatal(err)
	}
	return New(cfg)
}

// A fleet whose clients request an alternative with different node parameters shares one entry.
func TestPoliciesApplyToAllNamesOfAURL(t *testing.T) {
	r := router(t, policies)
	const want = "xdstp://drops/t/x?y=1#alt=xdstp://keeps/t/z?shard=2"
	for _, name := range []string{
		"xdstp://drops/t/x?xds.node.id=n1&y=1#alt=xdstp://keeps/t/z?xds.node.id=n1%26shard=2",
		"xdstp://drops/t/x?xds.node.id=n2&y=1#alt=xdstp://keeps/t/z?shard=2",
		"xdstp://drops/t/x?xds.node.id=n3&y=1%23alt%3Dxdstp://keeps/t/z?shard%3D2",
	} {
		if got, err := r.Xdstp(name); err != nil || got.Key.Name != want {
			t.Errorf("%s: got %s, %v, want %s", name, got.Key.Name, err, want)
		}
	}
	const wantGlob = "xdstp://drops/t/x/*?y=1#alt=xdstp://keeps/t/z/*?shard=2"
	for _, name := range []string{
		"xdstp://drops/t/x/*?xds.node.id=n1&y=1#alt=xdstp://keeps/t/z/*?xds.node.id=n1%26shard=2",
		"xdstp://drops/t/x/*?y=1#alt=xdstp://keeps/t/z/*?made=up%26shard=2",
	} {
		if got, err := r.Xdstp(name); err != nil || got.Key.Name != wantGlob || !got.Key.Glob {
			t.Errorf("%s: got %+v, %v, want %s", name, got.Key, err, wantGlob)
		}
	}
	// What one of them lacks does not make the others impossible.
	const lacking = "xdstp://keeps/t/x#alt=xdstp://drops/t/y"
	if got, err := r.Xdstp(lacking); err != nil || got.Key.Name != lacking {
		t.Errorf("%s: got %s, %v", lacking, got.Key.Name, err)
	}
}
