package integration

import (
	"strings"
	"testing"
)

// TestRefusedNamesLeaveATrace checks that the log, the metrics and the page /clients show which names the
// relay refuses, and why.
func TestRefusedNamesLeaveATrace(t *testing.T) {
	cp := startControlPlane(t)
	config := strings.Replace(relayTo(cp.address, "auto"), "  - authority: cp.example.com\n", "  - when: node.cluster == \"edge\"\n    authority: cp.example.com\n    partition: node.metadata[\"secret-key\"]\n", 1)
	for _, f := range []form{delta, sotw} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			r := startRelay(t, config)
			const name = "xdstp://unknown.example.com/envoy.config.listener.v3.Listener/shop"
			outside := newClient(t, r, f, node("outside", "other"))
			outside.subscribe(listenerType, name)
			outside.subscribe(clusterType, "cart")
			inside := newClient(t, r, f, node("inside", "edge"))
			inside.subscribe(clusterType, "cart")
			inside.subscribe(listenerType, "xdstp://no%zzname/envoy.config.listener.v3.Listener/shop")

			for _, line := range []string{
				`client=outside .* name=(` + name + `) refused=authority`,
				`client=outside .* name=(cart) refused=rule`,
				`client=inside .* name=(cart) refused=partition .*secret-key`,
				`client=inside .* refused=(name) `,
			} {
				r.awaitLog(t, `level=WARN msg="client's names cannot be served" `+line)
			}
			for _, reason := range []string{"authority", "rule", "partition", "name"} {
				r.mustShow(t, "/metrics", `xds_relay_downstream_names_refused_total{reason="`+reason+`"} 1`)
			}
			r.mustShow(t, "/metrics", `xds_relay_downstream_names_refused_total{reason="limit"} 0`)
			r.mustShow(t, "/clients", `"refused": 1`)
			r.mustShow(t, "/clients", `"name": "`+name+`"`)
			r.mustShow(t, "/clients", `"reason": "partition"`)
		})
	}
}
