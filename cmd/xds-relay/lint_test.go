package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The files of TestLintOfFiles.
var lintFiles = map[string]string{
	"good/shop.yaml": `"@type": type.googleapis.com/envoy.config.listener.v3.Listener
name: shop
api_listener: {api_listener: {
  "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
  stat_prefix: shop,
  rds: {route_config_name: shop, config_source: {ads: {}}},
  http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}
`,
	"good/routes.json": `{"@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "name": "shop",
 "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
  {"match": {"prefix": ""}, "route": {"cluster": "cart"}}]}]}
`,
	"good/cart.textpb": `# proto-message: envoy.config.cluster.v3.Cluster
name: "cart"
type: LOGICAL_DNS
load_assignment { cluster_name: "cart" endpoints { lb_endpoints { endpoint { address { socket_address { address: "cart" port_value: 80 } } } } } }
`,
	"good/.hidden.yaml": "not: [read",
	"random.yaml": `"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
name: cart
type: LOGICAL_DNS
lb_policy: RANDOM
load_assignment: {cluster_name: cart, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: cart, port_value: 80}}}}]}]}
`,
	"bad.yaml":  "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: [cart]\n",
	"typo.yaml": "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: cart\nlb_polcy: RANDOM\n",
}

func TestLintOfFiles(t *testing.T) {
	folder := t.TempDir()
	for name, text := range lintFiles {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(folder)
	for _, test := range []struct {
		rule   string
		args   string
		status int
		stdout string   // all of it
		stderr []string // parts of it
	}{
		{"what is good has no findings, whatever format it is in", "good", 0, "", []string{"3 resources: 0 errors, 0 warnings, 0 hints"}},
		{"files are as good as their directory", "good/shop.yaml good/cart.textpb good/routes.json", 0, "", nil},
		{"a reference from one file to another that is not looked at leads nowhere", "good/shop.yaml good/cart.textpb", 1,
			`good/shop.yaml:6: error: dangling-reference: listener "shop": RouteConfiguration "shop" does not exist, at api_listener.api_listener.rds.route_config_name (xDS protocol, "Eventual consistency considerations")
good/cart.textpb:2: hint: unused-resource: cluster "cart": no listener leads to it (xDS protocol, "Resource types")
`, []string{"1 error, 0 warnings, 1 hint"}},
		{"what clients have from elsewhere is not missed", "good/shop.yaml --elsewhere route=shop", 0, "", nil},
		{"a warning does not fail", "random.yaml --skip unused-resource", 0,
			`random.yaml:1: warning: grpc-lb-policy: cluster "cart": gRPC requires that lb_policy is ROUND_ROBIN, RING_HASH or LEAST_REQUEST (gRFC A27, A42, A48)
`, nil},
		{"a warning fails with --strict", "random.yaml --skip unused-resource --strict", 1,
			`random.yaml:1: warning: grpc-lb-policy: cluster "cart": gRPC requires that lb_policy is ROUND_ROBIN, RING_HASH or LEAST_REQUEST (gRFC A27, A42, A48)
`, nil},
		{"what all clients reject is an error", "random.yaml --skip unused-resource --for grpc", 1,
			`random.yaml:1: error: grpc-lb-policy: cluster "cart": gRPC requires that lb_policy is ROUND_ROBIN, RING_HASH or LEAST_REQUEST (gRFC A27, A42, A48)
`, nil},
		{"what no client rejects is none", "random.yaml --skip unused-resource --for envoy --strict", 0, "", nil},
		{"a file that cannot be read", "bad.yaml", 1, "bad.yaml:2: error: readable-file: invalid value for string field name (want a string, in quotes) (docs/configure.md)\n", nil},
		{"a field that is ignored", "typo.yaml --skip unused-resource --for envoy", 0, "typo.yaml:3: warning: known-fields: Cluster has no such field, at lb_polcy (Envoy, \"Filesystem subscriptions\")\n", nil},
		{"no file", "nothing.yaml", 2, "", []string{"nothing.yaml", "no such file"}},
		{"nothing to look at", "", 2, "", []string{"want files, directories, or --server"}},
		{"files and a server", "good --server 127.0.0.1:1", 2, "", []string{"do not go together"}},
		{"an unknown family", "good --for java", 2, "", []string{"want envoy, grpc or all"}},
		{"an unknown rule", "good --skip nothing", 2, "", []string{`no rule "nothing"`}},
		{"an unknown form", "good -o xml", 2, "", []string{"want text or json"}},
		{"an unknown type elsewhere", "good --elsewhere cart", 2, "", []string{"want TYPE=NAME"}},
		{"an address without a port", "--server cp", 2, "", []string{"want host:port"}},
		{"a server that is not there", "--server 127.0.0.1:1 --timeout 200ms", 3, "", []string{"127.0.0.1:1"}},
	} {
		t.Run(test.rule, func(t *testing.T) {
			stdout, stderr, status := runCommand(t, append([]string{"lint"}, strings.Fields(test.args)...)...)
			if status != test.status || stdout != test.stdout {
				t.Errorf("status %d, want %d\n%s\nwant\n%s\n%s", status, test.status, stdout, test.stdout, stderr)
			}
			for _, want := range test.stderr {
				if !strings.Contains(stderr, want) {
					t.Errorf("standard error has no %q:\n%s", want, stderr)
				}
			}
		})
	}
}

// The resources of TestLintOfAServerFollowsReferences: a listener that leads to a route, that to three
// clusters, of which one has endpoints and one does not exist.
const lintedShop = `- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: shop
  api_listener: {api_listener: {
    "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
    stat_prefix: shop,
    rds: {route_config_name: shop, config_source: {ads: {}}},
    http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}
- "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
  name: shop
  virtual_hosts:
  - name: all
    domains: ["*"]
    routes: [{match: {prefix: /}, route: {weighted_clusters: {clusters: [{name: cart}, {name: late}, {name: gone}]}}}]
- {"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: cart, type: EDS, eds_cluster_config: {service_name: cart-v2, eds_config: {ads: {}}}}
- {"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: late, type: EDS, eds_cluster_config: {eds_config: {ads: {}}}}
- {"@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment, cluster_name: cart-v2}
- {"@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment, cluster_name: nobody-names-it}
`

func TestLintOfAServerFollowsReferences(t *testing.T) {
	inFolder(t, map[string]string{
		"relay.yaml":          "listeners: [{address: '127.0.0.1:0'}]\nauthorities: [{name: files, directory: resources}]\nold_style_names: [{authority: files}]\n",
		"resources/shop.yaml": lintedShop,
	})
	address, stop := startServe(t, "relay.yaml")
	t.Cleanup(func() { stop() })
	for _, protocol := range []string{"delta", "sotw"} {
		for _, from := range []string{"--listener=shop", "--listener="} {
			t.Run(protocol+from, func(t *testing.T) {
				args := []string{"lint", "--server", address, "--node-id", "test", "--protocol", protocol, "--timeout", "1m", "-o", "json"}
				if from != "--listener=" {
					args = append(args, from)
				}
				stdout, stderr, status := runCommand(t, args...)
				var report lintReport
				if err := json.Unmarshal([]byte(stdout), &report); err != nil {
					t.Fatalf("%v\n%s%s", err, stdout, stderr)
				}
				if status != statusNotAll || report.Resources != 5 || report.Errors != 2 || report.Warnings != 1 || report.Hints != 0 {
					t.Errorf("status %d\n%s\n%s", status, stdout, stderr)
				}
				var got []string
				for _, f := range report.Findings {
					if f.Server != address || f.Type == "" || f.TypeURL == "" || f.Source == "" {
						t.Errorf("%+v", f)
					}
					text, _, _ := strings.Cut(f.Text, ":") // the server's reason follows
					got = append(got, f.Severity.String()+" "+f.Rule+" "+f.Name+" "+text)
				}
				slices.Sort(got)
				want := []string{
					`error dangling-reference late ClusterLoadAssignment "late" does not exist`,
					`error dangling-reference shop Cluster "gone" does not exist`,
					// To gRPC, a weight that is not set is 0.
					"warning grpc-cluster-weights shop gRPC requires that the weights of weighted_clusters add up to at least 1 and at most 4294967295",
				}
				if !slices.Equal(got, want) {
					t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			})
		}
	}
}
