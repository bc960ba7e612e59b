package authority

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/configs"
)

func TestExplainDescribesEveryStep(t *testing.T) {
	for _, tt := range []struct {
		name          string
		yaml          string
		node          *corev3.Node
		typeURL, what string
		want, err     string
	}{
		{
			name: "xdstp", yaml: federation, what: "xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/x",
			want: `
xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/x is an xdstp name: it means the same to every client
authority "cloud.example.com": authorities[0]
fed by server cloud:443 (auto, TLS)
`,
		},
		{
			name: "xdstp, a pattern, another spelling and another type", yaml: federation, typeURL: secretType, what: "xdstp://a.b.example.com/envoy.config.cluster.v3.Cluster/x?b=1&a=2",
			want: `
xdstp://a.b.example.com/envoy.config.cluster.v3.Cluster/x?b=1&a=2 is an xdstp name: it means the same to every client
its key is xdstp://a.b.example.com/envoy.config.cluster.v3.Cluster/x?a=2&b=1
its type is envoy.config.cluster.v3.Cluster; the relay requests it from its authority under type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret nevertheless
authority "a.b.example.com": authorities[2], which is *.b.example.com
fed by server b:1 (delta, plaintext)
`,
		},
		{
			name: "a glob", yaml: federation, typeURL: clusterType, what: "xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/x/*?a=1",
			want: `
xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/x/*?a=1 is an xdstp name: it means the same to every client
it is a glob collection: all resources in that directory with exactly these parameters
authority "cloud.example.com": authorities[0]
fed by server cloud:443 (auto, TLS)
`,
		},
		{
			name: "a list collection, as its members", yaml: federation, typeURL: clusterType, what: "xdstp://cloud.example.com/envoy.config.cluster.v3.ClusterCollection/x",
			want: `
xdstp://cloud.example.com/envoy.config.cluster.v3.ClusterCollection/x is an xdstp name: it means the same to every client
authority "cloud.example.com": authorities[0]
fed by server cloud:443 (auto, TLS)
`,
		},
		{
			name: "a glob of another type", yaml: federation, typeURL: clusterType, what: "xdstp://cloud.example.com/envoy.config.cluster.v3.ClusterCollection/x/*",
			want: `
xdstp://cloud.example.com/envoy.config.cluster.v3.ClusterCollection/x/* is an xdstp name: it means the same to every client
it is a glob collection: all resources in that directory with exactly these parameters
its type is envoy.config.cluster.v3.ClusterCollection, so it does not exist under type.googleapis.com/envoy.config.cluster.v3.Cluster
authority "cloud.example.com": authorities[0]
fed by server cloud:443 (auto, TLS)
`,
		},
		{
			name: "a glob, parameters that are dropped", yaml: policies, what: "xdstp://drops/envoy.config.cluster.v3.Cluster/x/*?xds.node.id=n&shard=1",
			want: `
xdstp://drops/envoy.config.cluster.v3.Cluster/x/*?xds.node.id=n&shard=1 is an xdstp name: it means the same to every client
authorities[1].context_parameters drops xds.node.id
its key is xdstp://drops/envoy.config.cluster.v3.Cluster/x/*?shard=1
it is a glob collection: all resources in that directory with exactly these parameters; their names get the parameters that the client requests
authority "drops": authorities[1]
fed by directory a
`,
		},
		{
			name: "xdstp, parameters that are dropped", yaml: policies, what: "xdstp://drops/envoy.config.cluster.v3.Cluster/x?xds.node.id=n&shard=1&debug.a=1",
			want: `
xdstp://drops/envoy.config.cluster.v3.Cluster/x?xds.node.id=n&shard=1&debug.a=1 is an xdstp name: it means the same to every client
authorities[1].context_parameters drops debug.a, xds.node.id
its key is xdstp://drops/envoy.config.cluster.v3.Cluster/x?shard=1
authority "drops": authorities[1]
fed by directory a
`,
		},
		{
			name: "xdstp, a parameter that is missing", yaml: policies, what: "xdstp://keeps/envoy.config.cluster.v3.Cluster/x",
			want: `
xdstp://keeps/envoy.config.cluster.v3.Cluster/x is an xdstp name: it means the same to every client
`,
			err: `xdstp name "xdstp://keeps/envoy.config.cluster.v3.Cluster/x": authority "keeps" requires the context parameter shard`,
		},
		{
			name: "xdstp, not configured", yaml: federation, typeURL: clusterType, what: "xdstp://other/envoy.config.cluster.v3.Cluster/x",
			want: `
xdstp://other/envoy.config.cluster.v3.Cluster/x is an xdstp name: it means the same to every client
`,
			err: `xdstp name "xdstp://other/envoy.config.cluster.v3.Cluster/x": authority "other" is not configured at this relay`,
		},
		{
			name: "xdstp, with directives as Envoy has them", yaml: federation, typeURL: clusterType, what: "xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/x%23alt=xdstp%3A//other/envoy.config.cluster.v3.Cluster/y",
			want: `
xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/x%23alt=xdstp%3A//other/envoy.config.cluster.v3.Cluster/y is an xdstp name: it means the same to every client
its key is xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/x#alt=xdstp://other/envoy.config.cluster.v3.Cluster/y
it has directives, which the relay evaluates: it is xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/x
authority "cloud.example.com": authorities[0]
fed by server cloud:443 (auto, TLS)
or, if that is unavailable, xdstp://other/envoy.config.cluster.v3.Cluster/y
which has no source: xdstp name "xdstp://other/envoy.config.cluster.v3.Cluster/y": authority "other" is not configured at this relay
`,
		},
		{
			name: "xdstp, and no name", yaml: federation, typeURL: clusterType, what: "xdstp://cloud.example.com/x",
			want: `
xdstp://cloud.example.com/x is an xdstp name: it means the same to every client
but not a valid one (it has no id): the relay requests it from its authority unchanged
authority "cloud.example.com": authorities[0]
fed by server cloud:443 (auto, TLS)
`,
		},
		{
			name: "old-style, the last rule", yaml: catchAll, node: node(t, "a", "mesh", nil), typeURL: clusterType, what: "backend",
			want: `
"backend" is an old-style name: its meaning depends on the client, here node "a" of cluster "mesh", and on the type, here "type.googleapis.com/envoy.config.cluster.v3.Cluster"
old_style_names[0] does not match: type_url.endsWith(".Secret") is false
old_style_names[1] does not match: node.metadata.team == "edge" cannot be evaluated: no such key: team
old_style_names[2] does not match: node.cluster == "tenant" && node.id != "" is false
old_style_names[3] matches: it has no when
partition "a": node.id
authority "Onprem:1": authorities[4]
fed by directory onprem
`,
		},
		{
			name: "old-style, one partition", yaml: rules, typeURL: secretType, what: "*",
			want: `
"*" is an old-style name: its meaning depends on the client, here node "" of cluster "", and on the type, here "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
old_style_names[0] matches: type_url.endsWith(".Secret") is true
partition "": the only one of the rule
authority "Onprem:1": authorities[4]
fed by directory onprem
`,
		},
		{
			name: "old-style, no partition", yaml: rules, node: node(t, "a", "tenant", map[string]any{"team": "mesh"}), typeURL: clusterType, what: "backend",
			want: `
"backend" is an old-style name: its meaning depends on the client, here node "a" of cluster "tenant", and on the type, here "type.googleapis.com/envoy.config.cluster.v3.Cluster"
old_style_names[0] does not match: type_url.endsWith(".Secret") is false
old_style_names[1] does not match: node.metadata.team == "edge" is false
old_style_names[2] matches: node.cluster == "tenant" && node.id != "" is true
`,
			err: `old_style_names[2].partition: node.metadata.tenant for node "a": no such key: tenant`,
		},
		{
			name: "old-style, no rules", yaml: federation, what: "backend",
			want: `
"backend" is an old-style name: its meaning depends on the client, here node "" of cluster "", and on the type, here ""
`,
			err: `old-style names: no rule of old_style_names matches node "" of cluster "" for type ""`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := router(t, tt.yaml).Explain(configs.Client{Node: tt.node}, tt.typeURL, tt.what)
			if want := strings.TrimPrefix(tt.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if err == nil && tt.err != "" || err != nil && err.Error() != tt.err {
				t.Errorf("got %v, want %s", err, tt.err)
			}
		})
	}
}

func TestDescribeSaysWhatOfANodeGoesUpstream(t *testing.T) {
	r := router(t, `
listeners: [{address: ":18000"}]
authorities:
  - {name: a, servers: [{address: "a:1"}]}
  - {name: d, directory: d}
old_style_names:
  - {when: node.cluster == "a", authority: a, partition: node.metadata.app, node_fields: [locality, 'metadata["b.c"]']}
  - {when: node.cluster == "b", authority: a, partition: node.cluster + node.id}
  - {when: node.cluster == "c", authority: a, node_fields: ["*"]}
  - {when: node.cluster == "d", authority: a}
  - {authority: d, partition: node.cluster}
`)
	got := r.Describe()
	for _, want := range []string{
		`old_style_names[0]: the relay sends the control plane a Node with only id, cluster, locality, metadata.app, metadata["b.c"] of the first client of a partition; all clients of the partition get the same resources, also where their Nodes differ`,
		"old_style_names[1]: different Nodes can have the same partition, because it joins texts that clients choose: see docs/partitions.md\n" +
			"old_style_names[1]: the relay sends the control plane a Node with only id, cluster of the first client of a partition; ",
		"old_style_names[2]: the relay sends the control plane the whole Node of the first client of this rule; all clients get the same resources, also where their Nodes differ\n",
		"old_style_names[3]: the relay sends the control plane a Node with only id, cluster of the first client of this rule; ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s, want in it %s", got, want)
		}
	}
	if strings.Count(got, "joins texts") != 1 {
		t.Errorf("got\n%s: only one of the rules joins texts", got)
	}
	if strings.Contains(got, "old_style_names[4]: the relay sends") {
		t.Errorf("got\n%s: a directory is sent no Node", got)
	}
	steps, err := r.Explain(configs.Client{Node: node(t, "x", "d", nil)}, clusterType, "backend")
	if want := "the relay sends the control plane a Node with only id, cluster of the first client of this rule\n"; err != nil || !strings.HasSuffix(steps, want) {
		t.Errorf("got %v\n%s, want at its end %s", err, steps, want)
	}
}

func TestDescribeSaysHowAServerIsReached(t *testing.T) {
	got := router(t, `
listeners: [{address: ":18000"}]
authorities:
  - {name: a, servers: [{address: "a:1"}]}
  - {name: b, servers: [{address: "b:1", aggregated: false, tls: {}}]}
  - {name: c, servers: [{address: "c:1", protocol: rest, poll_interval: 1m}]}
  - {name: d, servers: [{address: "d:1"}, {address: "d:2", protocol: sotw}]}
  - {name: f, servers: [{address: "f:1", protocol: delta, globs: false}]}
  - {name: e, servers: [{address: "e:1"}, {address: "e:2"}], failover: {policy: unreachable, grace: 1m, timeout: 3s}}
`).Describe()
	for _, want := range []string{
		"server a:1 (auto, plaintext)\n", "server b:1 (auto, a stream for each type, TLS)\n", "server c:1 (rest, polled every 1m0s, plaintext)\n",
		"server d:1 (auto, plaintext), else server d:2 (sotw, plaintext) (the next server takes over for missing resources; a server has 15s to answer)\n",
		"server f:1 (delta, globs from wildcards, plaintext)\n",
		"server e:2 (auto, plaintext) (the next server takes over for missing resources, and for all resources after 1m0s; a server has 3s to answer)\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s, want in it %s", got, want)
		}
	}
}

func TestDescribeSaysWhatBecomesOfContextParameters(t *testing.T) {
	got := router(t, policies).Describe()
	for _, want := range []string{
		"fed by directory a\nauthorities[1]: ",
		"authorities[1].context_parameters: all are passed on except xds.node.id, debug.*\n",
		"authorities[2].context_parameters: only shard, env* are passed on; names without shard are refused\n",
		"authorities[3].context_parameters: all are passed on; names without shard, or env* are refused\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s, want in it %s", got, want)
		}
	}
}

func TestDescribeSaysWhoIsRefused(t *testing.T) {
	const refused = "old_style_names: any other client is refused, except for xdstp names\n"
	for _, tt := range []struct {
		name, yaml string
		want       bool
	}{
		{"no rules", federation, true},
		{"rules for some", rules, true},
		{"rules for all", catchAll, false},
	} {
		if got := strings.Contains(router(t, tt.yaml).Describe(), refused); got != tt.want {
			t.Errorf("%s: got %t, want %t", tt.name, got, tt.want)
		}
	}
}
