package relay

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
)

func TestLintOfWhatAnAuthorityHas(t *testing.T) {
	folder := t.TempDir()
	const resources = `- "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
  name: shop
  virtual_hosts:
  - name: all
    domains: ["*"]
    routes:
    - {match: {prefix: /a}, route: {cluster: gone}}
    - {match: {prefix: /b}, route: {cluster: nobody-requested-it}}
- {"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: cart, type: EDS, lb_policy: RANDOM, eds_cluster_config: {eds_config: {ads: {}}}}
`
	if err := os.WriteFile(filepath.Join(folder, "shop.yaml"), []byte(resources), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startInMemory(t, `
listeners: [{address: "127.0.0.1:18000"}]
authorities: [{name: files, directory: `+folder+`}]
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
	for _, request := range []*discoveryv3.DeltaDiscoveryRequest{
		{TypeUrl: xdstype.RouteV3, ResourceNamesSubscribe: []string{"shop"}},
		{TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: []string{"cart", "gone"}},
	} {
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
	}
	for answered := map[string]bool{}; len(answered) < 3; {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range m.Resources {
			answered[r.Name] = true
		}
		for _, name := range m.RemovedResources {
			answered[name] = true
		}
	}
	get := func(query string) *httptest.ResponseRecorder { return askAdmin(s.relay, "/api/lint?"+query) }
	var report operator.LintReport
	if w := get("authority=files"); w.Code != http.StatusOK || json.Unmarshal(w.Body.Bytes(), &report) != nil {
		t.Fatalf("status %d\n%s", w.Code, w.Body)
	}
	var found []string
	for _, f := range report.Findings {
		found = append(found, f.Severity.String()+" "+f.Rule+" "+f.Type+" "+f.Name+" "+f.Path)
	}
	// The relay does not know a cluster that no client has requested.
	want := []string{
		"error dangling-reference route shop virtual_hosts[0].routes[0].route.cluster",
		"warning grpc-lb-policy cluster cart ",
	}
	if !slices.Equal(found, want) || report.Resources != 2 || report.Unread != 0 {
		t.Errorf("%+v, findings %q, want %q", report, found, want)
	}
	if w := get("authority=files&partition=other"); w.Code != http.StatusOK || json.Unmarshal(w.Body.Bytes(), &report) != nil || len(report.Findings) != 0 {
		t.Errorf("of another partition: status %d\n%s", w.Code, w.Body)
	}
	if w := get("authority=nobody"); w.Code != http.StatusNotFound {
		t.Errorf("of no authority: status %d", w.Code)
	}
}
