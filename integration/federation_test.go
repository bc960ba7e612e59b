package integration

// The test of configs/examples/hybrid.yaml, which docs/federation.md describes.

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// hybrid returns the example with these servers in place of the cloud's, with this folder, free ports and
// shorter times. Everything else is unchanged.
func hybrid(t testing.TB, one, two *port, folder string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "configs", "examples", "hybrid.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config := string(raw)
	for _, r := range [][2]string{
		{"cp-1.cloud.example.com:443\n        tls: {}", one.address + "\n        backoff: {base: 20ms, max: 100ms}"},
		{"cp-2.cloud.example.com:443\n        tls: {}", two.address + "\n        backoff: {base: 20ms, max: 100ms}"},
		{"grace: 30s", "grace: 1ms"},
		{"directory: /etc/xds/onprem", fmt.Sprintf("directory: %q", folder)},
		{"    tls:\n      cert_file: /etc/xds-relay/relay.pem\n      key_file: /etc/xds-relay/relay-key.pem\n      client_ca_file: /etc/xds-relay/relays-ca.pem\n", ""},
		{"0.0.0.0:18000", "127.0.0.1:0"}, {"0.0.0.0:18010", "127.0.0.1:0"}, {"127.0.0.1:19000", "127.0.0.1:0"},
	} {
		if strings.Count(config, r[0]) != 1 {
			t.Fatalf("the example does not contain %q exactly once", r[0])
		}
		config = strings.Replace(config, r[0], r[1], 1)
	}
	return config
}

const inTheCloud = `
resources:
- version: 1
  name: xdstp://cloud.example.com/envoy.config.listener.v3.ListenerCollection/edge
  resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.ListenerCollection
    entries:
    - locator: xdstp://cloud.example.com/envoy.config.listener.v3.Listener/public
- version: 3
  name: xdstp://cloud.example.com/envoy.config.listener.v3.Listener/public
  resource: {"@type": type.googleapis.com/envoy.config.listener.v3.Listener, payload: public}
- version: 5
  name: xdstp://cloud.example.com/envoy.config.endpoint.v3.ClusterLoadAssignment/cart
  resource: {"@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment, payload: in the cloud}
`

const onThePremises = `
name: xdstp://onprem/envoy.config.listener.v3.Listener/edge/public
resource:
  "@type": type.googleapis.com/xds.core.v3.ResourceLocator
  authority: cloud.example.com
  resource_type: envoy.config.listener.v3.Listener
  id: public
---
"@type": type.googleapis.com/envoy.config.listener.v3.Listener
name: xdstp://onprem/envoy.config.listener.v3.Listener/edge/admin
stat_prefix: admin
---
"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
name: xdstp://onprem/envoy.config.cluster.v3.Cluster/shared/cart
alt_stat_name: of the premises
---
"@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
cluster_name: xdstp://onprem/envoy.config.endpoint.v3.ClusterLoadAssignment/cart
endpoints: [{locality: {region: here}, load_balancing_weight: 1, lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 2}}}}]}]
`

// TestHybridExample runs the example, before and after the loss of the cloud, with Envoys of the edge and a
// client that follows redirects itself, as another relay does.
func TestHybridExample(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "all.yaml"), []byte(onThePremises), 0o600); err != nil {
		t.Fatal(err)
	}
	one := startTP1Plane(t, resources(t, inTheCloud)...)
	two := newTP1Plane(t) // its server is never started
	r := startRelay(t, hybrid(t, one.port, two.port, folder))

	const (
		cloud  = "xdstp://cloud.example.com/envoy.config."
		onprem = "xdstp://onprem/envoy.config."
		public = onprem + "listener.v3.Listener/edge/public"
		cart   = cloud + "endpoint.v3.ClusterLoadAssignment/cart?xds.node.id=%s"
		fleet  = "xdstp://fleet/envoy.config.cluster.v3.Cluster/all/"
	)
	var all []*client
	for _, f := range []form{delta, sotw} {
		edge := newClient(t, r, f, node("envoy of the "+string(f)+" kind", "edge"))
		edge.subscribe(listenerType, wildcard)
		edge.awaitHas(t, "the union", plainListener(cloud+"listener.v3.Listener/public", "public"),
			plainListener(public, "public"), plainListener(onprem+"listener.v3.Listener/edge/admin", "admin"))
		name := fmt.Sprintf(cart, f) + "#alt=" + onprem + "endpoint.v3.ClusterLoadAssignment/cart"
		edge.subscribe(endpointType, name)
		edge.awaitPort(t, name, 1)
		all = append(all, edge)
	}
	one.read(func(s *tp1State) {
		for requested, n := range s.subscribed() {
			if strings.Contains(requested.name, "xds.node.id") || n != 1 {
				t.Errorf("the cloud's control plane received %d requests for %s", n, requested.name)
			}
		}
	})

	behind := openTP1Client(t, r.awaitSecond(t))
	behind.subscribe(listenerType, public)
	behind.awaitPrinted(t, listenerType, `
resources:
- name: xdstp://onprem/envoy.config.listener.v3.Listener/edge/public
  resource: {"@type": type.googleapis.com/xds.core.v3.ResourceLocator, locator: "xdstp://cloud.example.com/envoy.config.listener.v3.Listener/public"}
`)

	one.end()
	for _, edge := range all {
		edge.awaitPort(t, fmt.Sprintf(cart, edge.form)+"#alt="+onprem+"endpoint.v3.ClusterLoadAssignment/cart", 2)
		edge.subscribe(clusterType, fleet+"*")
		edge.awaitHas(t, "the premises' clusters", plainCluster(fleet+"cart", "of the premises"))
		edge.read(func(v *view) {
			if len(v.gone) > 0 || len(v.names(listenerType)) != 3 {
				t.Errorf("the %s client has lost resources: %s", edge.form, v)
			}
		})
	}
}

// awaitSecond returns the address of the relay's second listener.
func (r *relay) awaitSecond(t testing.TB) string {
	t.Helper()
	return r.awaitLog(t, regexp.QuoteMeta(r.address)+`[^\n]*\n(?:[^\n]*\n)*?[^\n]*msg="serving clients" address=(\S+)`)
}
