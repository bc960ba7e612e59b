package configs

import (
	"strings"
	"testing"
)

// check warns of views that a client leaves by what it says, and of paths that are the beginning
// of their neighbours'.
func TestRightsThatDoNotHoldAreWarnedOf(t *testing.T) {
	const head = `
listeners: [{address: "127.0.0.1:0"}]
authorities: [{name: a, directory: files}]
`
	for _, tt := range []struct {
		rule, yaml, want string // no warning if want is empty
	}{
		{"a view by the Node", `
views: [{match: {type: cluster, wildcard: true}, when: node.cluster == "x", collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/*"]}]
rights: [{allow: true}]`, "views[0].when: reads only the Node"},
		{"without rights everybody may have everything", `
views: [{match: {type: cluster, wildcard: true}, when: node.cluster == "x", collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/*"]}]`, ""},
		{"a view by the identity too", `
views: [{match: {type: cluster, wildcard: true}, when: node.cluster == "x" && identity.source == "mtls", collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/*"]}]
rights: [{allow: true}]`, ""},
		{"a path alone", `
rights: [{allow: name.startsWith( identity.spiffe_path )}]`, "rights[0].allow: compares with identity.spiffe_path alone"},
		{"a path that ends", `
rights: [{allow: 'name.startsWith(identity.spiffe_path + "/")'}]`, ""},
	} {
		c, err := Parse("relay.yaml", []byte(head+tt.yaml))
		if err != nil {
			t.Fatalf("%s: %v", tt.rule, err)
		}
		var got []string
		for _, w := range c.Warnings() {
			got = append(got, w.Error())
		}
		all := strings.Join(got, "\n")
		if tt.want == "" && all != "" || !strings.Contains(all, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.rule, all, tt.want)
		}
	}
}
