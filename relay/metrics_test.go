package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

const metricsPage = "../docs/metrics.md"

// metric is one of /metrics, or of the page about them.
type metric struct {
	kind   string
	labels string // sorted, with ", " between them
	about  string
}

// readMetrics reads the text form of Prometheus.
func readMetrics(text string) map[string]metric {
	all, labels := map[string]metric{}, map[string]map[string]bool{}
	family := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, about, _ := strings.Cut(rest, " ")
			all[name] = metric{about: about}
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			m := all[name]
			m.kind = kind
			family, all[name], labels[name] = name, m, map[string]bool{}
			continue
		}
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(line, -1) {
			labels[family][l[1]] = true
		}
	}
	for name, of := range labels {
		m := all[name]
		m.labels = strings.Join(slices.Sorted(maps.Keys(of)), ", ")
		all[name] = m
	}
	return all
}

// pageMetrics reads the tables of the page.
func pageMetrics(t *testing.T) map[string]metric {
	t.Helper()
	page, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]metric{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 4 || !slices.Contains([]string{"gauge", "counter", "summary", "histogram"}, cells[1]) {
			continue
		}
		name := strings.Trim(cells[0], "`")
		if _, twice := all[name]; twice {
			t.Errorf("%s explains %s twice", metricsPage, name)
		}
		all[name] = metric{kind: cells[1], labels: strings.ReplaceAll(cells[2], "`", ""), about: cells[3]}
	}
	return all
}

// servedMetrics returns the metrics of a relay in which each has a value: one authority is a directory, and the
// other's control plane cannot be reached.
func servedMetrics(t *testing.T) map[string]metric {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, certtest.PEM(certtest.NewCA(t, "ca")), 0o600); err != nil {
		t.Fatal(err)
	}
	// The names of the labels do not depend on what is measured.
	of := propagation.Kind{Authority: "plane", Type: "other"}
	measured := func(r *Relay) {
		r.propagation.Reached(of, propagation.Sent, propagation.First, time.Second)
		r.propagation.Missed(of, propagation.ACKed, 1)
	}
	return readMetrics(metricsAfter(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:18000"}]
authorities:
  - name: files
    directory: %s
  - name: secure
    servers: [{address: "secure:18000", tls: {ca_file: %s}}]
  - name: plane
    rollout: {}
    servers: [{address: "plane:18000"}]
old_style_names: [{authority: plane}]
store: {path: %s}
`, t.TempDir(), ca, filepath.Join(t.TempDir(), "store.db")), measured, "a"))
}

// metricsWith returns the metrics of a relay whose control planes cannot be reached, after a client has requested
// these clusters.
func metricsWith(t *testing.T, config string, names ...string) string {
	t.Helper()
	return metricsAfter(t, config, func(*Relay) {}, names...)
}

// metricsAfter is like metricsWith, but first calls before with the relay.
func metricsAfter(t *testing.T, config string, before func(*Relay), names ...string) string {
	t.Helper()
	s := startInMemory(t, config, func(string) dialer {
		return func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody listens") }
	})
	defer s.close()
	conn, _ := s.dial(t)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: names}); err != nil {
		t.Fatal(err)
	}
	// The client is answered once the control planes are known to be unreachable.
	for answered := 0; answered < len(names); {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		answered += len(m.GetResourceErrors())
	}
	before(s.relay)
	return askAdmin(s.relay, "/metrics").Body.String()
}

// Clients can make up any number of authorities under a pattern.
func TestMetricsOfAuthoritiesUnderAPatternHaveOneLabel(t *testing.T) {
	const made = 30
	var names []string
	for i := range made {
		names = append(names, fmt.Sprintf("xdstp://made-up-%d.example.com/envoy.config.cluster.v3.Cluster/x", i))
	}
	text := metricsWith(t, `
listeners: [{address: "127.0.0.1:18000", when_unreachable: wait}]
authorities:
  - name: "*.example.com"
    servers: [{address: "plane:18000"}]
`, names...)
	for _, want := range []string{
		fmt.Sprintf("xds_relay_upstream_streams{connected=\"false\",grpc_xds_authority=\"*.example.com\"} %d\n", made),
		fmt.Sprintf("xds_relay_upstream_unreachable{grpc_xds_authority=\"*.example.com\"} %d\n", made),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if strings.Contains(text, "made-up") {
		t.Error("the metrics have what a client has made up")
	}
}

func TestMetricsPageHasEveryMetric(t *testing.T) {
	served, page := servedMetrics(t), pageMetrics(t)
	for _, name := range slices.Sorted(maps.Keys(served)) {
		is, says := served[name], page[name]
		if says == (metric{}) {
			t.Errorf("%s lacks | `%s` | %s | %s | %s |", metricsPage, name, is.kind, is.labels, is.about)
			continue
		}
		if says.kind != is.kind || says.labels != is.labels {
			t.Errorf("%s: %s is a %s with the labels %q, and not a %s with %q", metricsPage, name, is.kind, is.labels, says.kind, says.labels)
		}
		if strings.HasPrefix(name, "xds_relay_") && !strings.HasPrefix(says.about, is.about) {
			t.Errorf("%s: what %s means begins with %q, want the metric's own help: %q", metricsPage, name, says.about, is.about)
		}
	}
	for name := range page {
		// Which metrics of the process exist depends on the system.
		if _, ok := served[name]; !ok && !strings.HasPrefix(name, "process_") {
			t.Errorf("%s explains %s, which the relay does not have", metricsPage, name)
		}
	}
}

// Other pages name only metrics that exist.
func TestPagesNameMetricsThatExist(t *testing.T) {
	known := pageMetrics(t)
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\b(xds_relay[_.]|go_gc_|process_)[a-z_.]+[a-z]`)
	for _, page := range append(pages, "../README.md", "../ARCHITECTURE.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range named.FindAllString(string(text), -1) {
			of := name
			for _, series := range []string{"_bucket", "_sum", "_count"} {
				if family := strings.TrimSuffix(name, series); known[family].kind == "histogram" {
					of = family
				}
			}
			if _, ok := known[of]; !ok {
				t.Errorf("%s names %s, which is not in %s", page, name, metricsPage)
			}
		}
	}
}
