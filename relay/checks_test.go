package relay

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
)

// A cluster that gRPC rejects passes by default, and the operator sees it: in /authorities with
// the reason, and in the metrics without its name. With check: refuse, clients do not get it.
func TestOperatorSeesWhatClientsWouldReject(t *testing.T) {
	for _, tt := range []struct {
		check, outcome string
		served         bool
	}{{"warn", "warned", true}, {"refuse", "refused", false}} {
		t.Run(tt.check, func(t *testing.T) {
			folder := t.TempDir()
			file := `
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: random-cluster
  type: EDS
  eds_cluster_config: {eds_config: {ads: {}}}
  lb_policy: RANDOM
`
			if err := os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
			s := startInMemory(t, `
listeners: [{address: "127.0.0.1:18000"}]
authorities: [{name: files, directory: `+folder+`, check: `+tt.check+`}]
old_style_names: [{authority: files}]
`, nil)
			defer s.close()
			conn, _ := s.dial(t)
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: []string{"random-cluster"}}); err != nil {
				t.Fatal(err)
			}
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got := len(m.GetResources()) == 1; got != tt.served {
				t.Errorf("the client is sent %v", m)
			}
			get := func(path string) string { return askAdmin(s.relay, path).Body.String() }
			var authorities []operator.AuthorityStatus
			if err := json.Unmarshal([]byte(get("/authorities")), &authorities); err != nil {
				t.Fatal(err)
			}
			check := authorities[0].Check
			if check.Mode != tt.check || len(check.Last) != 1 || check.Last[0].Name != "random-cluster" || check.Last[0].Type != "cluster" ||
				check.Last[0].Refused == tt.served || !strings.Contains(check.Last[0].Reason, "it requires that lb_policy is ROUND_ROBIN") {
				t.Errorf("/authorities has %+v", check)
			}
			if check.Refused+check.Warned != 1 || (check.Warned == 1) != tt.served {
				t.Errorf("/authorities counts %d refused and %d warned", check.Refused, check.Warned)
			}
			metrics := get("/metrics")
			if want := `xds_relay_check_failures_total{grpc_xds_authority="files",grpc_xds_resource_type="envoy.config.cluster.v3.Cluster",outcome="` + tt.outcome + `",rejected_by="grpc"} 1`; !strings.Contains(metrics, want) {
				t.Errorf("the metrics lack %s", want)
			}
			if strings.Contains(metrics, "random-cluster") {
				t.Error("the metrics have the name of a resource")
			}
		})
	}
}
