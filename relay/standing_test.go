package relay

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// A bad change causes one NACK of each client, so an alert needs the number of clients that reject something now.
func TestMetricsAndStatusHaveWhatClientsRejectAndWhatTheyAreRefusedNow(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "clusters.yaml", fmt.Appendf(nil, "resources: [{'@type': %[1]s, name: a}, {'@type': %[1]s, name: b}, {'@type': %[1]s, name: c}]\n", xdstype.ClusterV3))
	s := startInMemory(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:18000"}]
authorities: [{name: files, directory: %q, check: "off"}]
old_style_names: [{authority: files}]
`, filepath.ToSlash(dir)), nil)
	defer s.close()
	conn, _ := s.dial(t)
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *discoveryv3.DeltaDiscoveryRequest) (nonce string) {
		t.Helper()
		req.TypeUrl = xdstype.ClusterV3
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return m.GetNonce()
	}
	rejects := func() bool {
		for _, p := range s.relay.observer.LookAround().Problems {
			if strings.Contains(p.Text, "rejects what it was sent of type cluster: not this") {
				return true
			}
		}
		return false
	}
	has := func(rejecting, refused int) {
		t.Helper()
		text := askAdmin(s.relay, "/metrics").Body.String()
		for _, want := range []string{
			fmt.Sprintf("xds_relay_downstream_clients_rejecting{grpc_xds_resource_type=\"envoy.config.cluster.v3.Cluster\"} %d\n", rejecting),
			"xds_relay_downstream_clients_rejecting{grpc_xds_resource_type=\"envoy.config.listener.v3.Listener\"} 0\n",
			fmt.Sprintf("xds_relay_downstream_clients_with_refused_names{reason=\"authority\"} %d\n", refused),
		} {
			if !strings.Contains(text, want) {
				t.Errorf("the metrics lack %s", want)
			}
		}
		if rejects() != (rejecting > 0) {
			t.Errorf("the status has the rejection: %v", rejects())
		}
	}
	nonce := ask(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a"}})
	has(0, 0)
	// Each request is processed before the next one, whose answer shows that.
	nonce = ask(&discoveryv3.DeltaDiscoveryRequest{
		ResponseNonce: nonce, ErrorDetail: &statuspb.Status{Message: "not this"},
		ResourceNamesSubscribe: []string{"xdstp://unknown/envoy.config.cluster.v3.Cluster/x"},
	})
	has(1, 1)
	ask(&discoveryv3.DeltaDiscoveryRequest{
		ResponseNonce: nonce, ResourceNamesSubscribe: []string{"b"},
		ResourceNamesUnsubscribe: []string{"xdstp://unknown/envoy.config.cluster.v3.Cluster/x"},
	})
	has(1, 0) // it has accepted something else
	writeFile(t, dir, "clusters.yaml", fmt.Appendf(nil, "resources: [{'@type': %[1]s, name: a, alt_stat_name: other}, {'@type': %[1]s, name: b}, {'@type': %[1]s, name: c}]\n", xdstype.ClusterV3))
	changed, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	ask(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: changed.GetNonce(), ResourceNamesSubscribe: []string{"c"}})
	has(0, 0)
}
