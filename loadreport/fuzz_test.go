package loadreport

import (
	"math"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/cache"
)

// oneScope are names of which all are clusters of one authority.
type oneScope struct{}

func (oneScope) Scopes() []cache.Scope { return []cache.Scope{{Authority: "a"}} }
func (oneScope) Close()                {}
func (oneScope) Cluster(name string) (cache.Scope, string, error) {
	return cache.Scope{Authority: "a"}, strings.ToLower(name), nil
}

// FuzzReports has two clients send any reports. The control plane is sent each count once, also if a message is lost, and
// the messages are no larger than what was charged for them. When the clients have gone, nothing is charged.
func FuzzReports(f *testing.F) {
	seed := func(r *lrsv3.LoadStatsRequest) []byte {
		text, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		return text
	}
	full := reportOf("a/X", 3, "z1", "z2")
	st := full.GetClusterStats()[0]
	st.ClusterServiceName, st.TotalDroppedRequests, st.LoadReportInterval = "s", 7, durationpb.New(-time.Second)
	st.DroppedRequests = []*endpointv3.ClusterStats_DroppedRequests{{Category: "lb", DroppedCount: math.MaxUint64}, {Category: "lb", DroppedCount: 1}}
	l := st.GetUpstreamLocalityStats()[0]
	l.TotalRequestsInProgress, l.TotalErrorRequests = math.MaxUint64, math.MaxUint64
	l.LoadMetricStats = []*endpointv3.EndpointLoadMetricStats{{MetricName: "m", NumRequestsFinishedWithMetric: 1, TotalMetricValue: math.Inf(1)}}
	l.CpuUtilization = &endpointv3.UnnamedEndpointLoadMetricStats{NumRequestsFinishedWithMetric: 1, TotalMetricValue: math.NaN()}
	l.UpstreamEndpointStats = []*endpointv3.UpstreamEndpointStats{{Address: address("10.0.0.1"), TotalSuccessfulRequests: 1, TotalRequestsInProgress: 2}, {}}
	f.Add(seed(full), seed(reportOf("a/x", 1, "z1")), uint16(0))
	f.Add(seed(reportOf("a/x", 1, "", "")), seed(&lrsv3.LoadStatsRequest{}), uint16(1000))
	f.Fuzz(func(t *testing.T, one, other []byte, most uint16) {
		h := newTestHub()
		var clients []*Client
		var reports []*endpointv3.ClusterStats
		for i, text := range [][]byte{one, other} {
			r := new(lrsv3.LoadStatsRequest)
			if proto.Unmarshal(text, r) != nil {
				return
			}
			c := h.Open(ClientOptions{Node: &corev3.Node{}, Account: i, Names: func() Names { return oneScope{} }})
			clients = append(clients, c)
			if i == 0 {
				h.streams["a"].Asked(&lrsv3.LoadStatsResponse{SendAllClusters: true, ReportEndpointGranularity: true})
			}
			c.Report(proto.CloneOf(r))
			reports = append(reports, r.GetClusterStats()...)
		}
		// Metrics are refused whose total is not finite.
		withMetrics := h.discarded[DiscardedLimit].Load() == 0
		reported := map[string]uint64{}
		tallyCounts(reported, reports, withMetrics)
		c := h.streams["a"]
		charged := h.budget.used
		if charged > mostOfAll {
			t.Fatalf("%d bytes are charged", charged)
		}
		messages, at, ok := c.Take(int(most))
		if !ok {
			t.Fatal("nothing is taken")
		}
		c.Restore(messages, at) // they were lost
		messages, _, _ = c.Take(math.MaxInt)
		sent, size := map[string]uint64{}, 0
		for _, m := range messages {
			tallyCounts(sent, m, withMetrics)
			for _, st := range m {
				size += proto.Size(st)
				if d := st.GetLoadReportInterval(); d.CheckValid() != nil || d.AsDuration() < 0 || d.AsDuration() > mostCovered {
					t.Fatalf("%s is of %v", st.GetClusterName(), d)
				}
			}
		}
		if size > charged {
			t.Fatalf("%d bytes are sent, for which %d were charged", size, charged)
		}
		for name, n := range reported {
			if sent[name] != n {
				t.Fatalf("%s is sent as %d, want %d", name, sent[name], n)
			}
		}
		for name, n := range sent {
			if reported[name] != n {
				t.Fatalf("%s is sent as %d, and nobody has reported it", name, n)
			}
		}
		for _, client := range clients {
			client.Close()
		}
		c.Take(math.MaxInt)
		if !c.Over() || h.budget.used != 0 || len(h.budget.accounts) != 0 {
			t.Fatalf("%d bytes are charged to %d accounts, though there is nothing", h.budget.used, len(h.budget.accounts))
		}
	})
}

// tallyCounts adds the counts of clusters and localities.
func tallyCounts(to map[string]uint64, clusters []*endpointv3.ClusterStats, withMetrics bool) {
	add := func(name string, n uint64) {
		if n > 0 {
			to[name] = plus(to[name], n)
		}
	}
	for _, st := range clusters {
		name := strings.ToLower(st.GetClusterName()) + " " + st.GetClusterServiceName()
		add(name+" dropped", st.GetTotalDroppedRequests())
		for _, d := range st.GetDroppedRequests() {
			add(name+" dropped "+d.GetCategory(), d.GetDroppedCount())
		}
		for _, l := range st.GetUpstreamLocalityStats() {
			name := name + " " + rowKeyOf(l).proto().String()
			add(name+" ok", l.GetTotalSuccessfulRequests())
			add(name+" failed", l.GetTotalErrorRequests())
			add(name+" issued", l.GetTotalIssuedRequests())
			add(name+" new", l.GetTotalNewConnections())
			add(name+" refused", l.GetTotalFailConnections())
			if withMetrics {
				add(name+" cpu", l.GetCpuUtilization().GetNumRequestsFinishedWithMetric())
				for _, m := range l.GetLoadMetricStats() {
					add(name+" metric "+m.GetMetricName(), m.GetNumRequestsFinishedWithMetric())
				}
			}
			for _, e := range l.GetUpstreamEndpointStats() {
				if proto.Size(e.GetAddress()) > 0 {
					add(name+" ok at "+e.GetAddress().String(), e.GetTotalSuccessfulRequests())
				}
			}
		}
	}
}

// FuzzAsk has a control plane send any response. The relay asks clients for the clusters that it requests, by their names
// there, with an interval that they can keep.
func FuzzAsk(f *testing.F) {
	for _, r := range []*lrsv3.LoadStatsResponse{
		{Clusters: []string{"a/X", "a/x", ""}, LoadReportingInterval: durationpb.New(time.Second)},
		{SendAllClusters: true, Clusters: []string{"b"}, ReportEndpointGranularity: true, LoadReportingInterval: &durationpb.Duration{Seconds: math.MaxInt64}},
		{LoadReportingInterval: &durationpb.Duration{Seconds: 1, Nanos: -1}},
	} {
		text, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, len(r.GetClusters()) > 1)
	}
	f.Fuzz(func(t *testing.T, text []byte, supportsAll bool) {
		r := new(lrsv3.LoadStatsResponse)
		if proto.Unmarshal(text, r) != nil {
			return
		}
		ask := NewAsk(r, strings.ToLower)
		asked := union([]scopedAsk{{Ask: ask}}, supportsAll, func(cache.Scope, string) bool { return true })
		if d := asked.GetLoadReportingInterval(); d.CheckValid() != nil || d.AsDuration() < leastInterval || d.AsDuration() != ask.Interval {
			t.Fatalf("%v is asked for as %v", r, asked)
		}
		if asked.GetSendAllClusters() != (r.GetSendAllClusters() && supportsAll) {
			t.Fatalf("%v is asked for as %v", r, asked)
		}
		names := map[string]bool{}
		for _, name := range asked.GetClusters() {
			if names[strings.ToLower(name)] {
				t.Fatalf("%v is asked for as %v", r, asked)
			}
			names[strings.ToLower(name)] = true
		}
		for _, name := range r.GetClusters() {
			if _, ok := ask.wants(strings.ToLower(name)); !ok || names[strings.ToLower(name)] == r.GetSendAllClusters() {
				t.Fatalf("%v is asked for as %v", r, asked)
			}
		}
	})
}
