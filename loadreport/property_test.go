package loadreport

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"
)

// TestSumsAreExact: whatever clients report, whenever they connect and leave, and however often control planes are
// lost, change their requests or do not get a report: the relay sends each control plane every count that it requests
// exactly once, and the requests in progress at the clients that are connected.
func TestSumsAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t, testHub: newTestHub(), wants: map[string]func(string) bool{}, pending: map[string]tally{}, gauges: map[int]map[string]uint64{}, clients: map[int]*Client{}}
		m.open()
		t.Repeat(map[string]func(*rapid.T){
			"client comes": func(*rapid.T) {
				if len(m.clients) < 5 {
					m.open()
				}
			},
			"client goes":   func(t *rapid.T) { m.gone(t) },
			"report":        func(t *rapid.T) { m.report(t) },
			"control plane": func(t *rapid.T) { m.asked(t) },
			"send": func(t *rapid.T) {
				m.send(t, rapid.SampledFrom(authorities).Draw(t, "authority"), rapid.IntRange(0, 6).Draw(t, "fails"))
			},
			"lost":        func(t *rapid.T) { m.stream(rapid.SampledFrom(authorities).Draw(t, "authority")).Failed() },
			"reconfigure": func(*rapid.T) { m.Reconfigure() },
			"time": func(t *rapid.T) {
				m.clock = m.clock.Add(time.Second * time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")))
			},
		})
		for len(m.clients) > 0 {
			m.gone(t)
		}
		for _, authority := range authorities {
			m.send(t, authority, 100)
			if left := m.sumOf(authority); len(left) > 0 && m.wants[authority] != nil {
				t.Fatalf("%s was not sent %v", authority, left)
			}
			if m.wants[authority] != nil && !m.stream(authority).Over() {
				t.Fatalf("the stream of %s is still needed", authority)
			}
		}
		if h := m.Hub; h.budget.used != 0 || len(h.budget.accounts) != 0 {
			t.Fatalf("%d bytes are used of %d accounts, though there is nothing", h.budget.used, len(h.budget.accounts))
		}
	})
}

var authorities = []string{"a", "b"}

// tally has, by their names, the counts that a control plane is to be sent.
type tally map[string]float64

type model struct {
	t *rapid.T
	*testHub
	next    int
	clients map[int]*Client
	wants   map[string]func(cluster string) bool // by authority, nil before the first answer
	pending map[string]tally                     // by cluster
	gauges  map[int]map[string]uint64            // of each client
}

// stream returns the stream of an authority, which exists once there has been a client.
func (m *model) stream(authority string) *Collector { return m.streams[authority] }

func (m *model) open() {
	m.next++
	m.clients[m.next] = m.Open(ClientOptions{
		Node: &corev3.Node{}, Account: m.next % 2, Names: func() Names { return &testNames{scopes: authorities} },
	})
	m.gauges[m.next] = map[string]uint64{}
}

func (m *model) someClient(t *rapid.T) int {
	if len(m.clients) == 0 {
		m.open()
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(m.clients))).Draw(t, "client")
}

func (m *model) gone(t *rapid.T) {
	i := m.someClient(t)
	m.clients[i].Close()
	delete(m.clients, i)
	delete(m.gauges, i)
}

func (m *model) asked(t *rapid.T) {
	authority := rapid.SampledFrom(authorities).Draw(t, "authority")
	if m.stream(authority) == nil {
		return
	}
	r := &lrsv3.LoadStatsResponse{ReportEndpointGranularity: true, LoadReportingInterval: durationpb.New(10 * time.Second)}
	if r.SendAllClusters = rapid.Bool().Draw(t, "all"); !r.SendAllClusters {
		r.Clusters = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{authority + "/x", authority + "/y", authority + "/z"}), 1, 3, rapid.ID[string]).Draw(t, "clusters")
	}
	m.stream(authority).Asked(r)
	m.wants[authority] = func(cluster string) bool { return r.SendAllClusters || slices.Contains(r.Clusters, cluster) }
}

// report makes a client report on random clusters, localities and endpoints.
func (m *model) report(t *rapid.T) {
	i := m.someClient(t)
	gauges := map[string]uint64{}
	r := &lrsv3.LoadStatsRequest{}
	number := func() uint64 { return rapid.Uint64Range(0, 3).Draw(t, "n") }
	for range rapid.IntRange(0, 3).Draw(t, "clusters") {
		st := &endpointv3.ClusterStats{
			ClusterName:          rapid.SampledFrom([]string{"a/x", "a/y", "b/x", "b/z"}).Draw(t, "cluster"),
			ClusterServiceName:   rapid.SampledFrom([]string{"", "s"}).Draw(t, "service"),
			TotalDroppedRequests: number(), LoadReportInterval: durationpb.New(time.Second),
		}
		if n := number(); n > 0 {
			st.DroppedRequests = append(st.DroppedRequests, &endpointv3.ClusterStats_DroppedRequests{Category: rapid.SampledFrom([]string{"lb", "throttle"}).Draw(t, "category"), DroppedCount: n})
		}
		for range rapid.IntRange(0, 2).Draw(t, "localities") {
			l := &endpointv3.UpstreamLocalityStats{
				Locality: &corev3.Locality{Zone: rapid.SampledFrom([]string{"", "z"}).Draw(t, "zone")}, Priority: rapid.Uint32Range(0, 1).Draw(t, "priority"),
				TotalSuccessfulRequests: number(), TotalErrorRequests: number(), TotalIssuedRequests: number(),
				TotalNewConnections: number(), TotalFailConnections: number(),
				TotalRequestsInProgress: number(), TotalActiveConnections: number(),
			}
			if n := number(); n > 0 {
				l.LoadMetricStats = append(l.LoadMetricStats, &endpointv3.EndpointLoadMetricStats{MetricName: rapid.SampledFrom([]string{"m", "n"}).Draw(t, "metric"), NumRequestsFinishedWithMetric: n, TotalMetricValue: float64(number()) / 2})
				l.MemUtilization = &endpointv3.UnnamedEndpointLoadMetricStats{NumRequestsFinishedWithMetric: n, TotalMetricValue: float64(number())}
			}
			if rapid.Bool().Draw(t, "endpoint") {
				l.UpstreamEndpointStats = append(l.UpstreamEndpointStats, &endpointv3.UpstreamEndpointStats{
					Address: address("10.0.0.1"), TotalSuccessfulRequests: number(), TotalErrorRequests: number(), TotalIssuedRequests: number(), TotalRequestsInProgress: number(),
				})
			}
			st.UpstreamLocalityStats = append(st.UpstreamLocalityStats, l)
		}
		r.ClusterStats = append(r.ClusterStats, st)
		each(st, func(name string, n float64) { m.of(st.ClusterName).add(name, n) }, func(name string, n uint64) {
			gauges[st.ClusterName+name] += n
		})
	}
	m.clients[i].Report(r)
	m.gauges[i] = gauges
}

func (m *model) of(cluster string) tally {
	if m.pending[cluster] == nil {
		m.pending[cluster] = tally{}
	}
	return m.pending[cluster]
}

func (c tally) add(name string, n float64) {
	if c[name] += n; c[name] == 0 {
		delete(c, name)
	}
}

// each calls count and state for all counts and states of a cluster, under their names.
func each(st *endpointv3.ClusterStats, count func(string, float64), state func(string, uint64)) {
	name := fmt.Sprintf("/%s", st.GetClusterServiceName())
	count(name+" dropped", float64(st.GetTotalDroppedRequests()))
	for _, d := range st.GetDroppedRequests() {
		count(name+" dropped "+d.GetCategory(), float64(d.GetDroppedCount()))
	}
	for _, l := range st.GetUpstreamLocalityStats() {
		name := fmt.Sprintf("%s/%s/%d", name, l.GetLocality().GetZone(), l.GetPriority())
		count(name+" ok", float64(l.GetTotalSuccessfulRequests()))
		count(name+" failed", float64(l.GetTotalErrorRequests()))
		count(name+" issued", float64(l.GetTotalIssuedRequests()))
		count(name+" new", float64(l.GetTotalNewConnections()))
		count(name+" refused", float64(l.GetTotalFailConnections()))
		state(name+" now", l.GetTotalRequestsInProgress())
		state(name+" connections", l.GetTotalActiveConnections())
		for _, metric := range l.GetLoadMetricStats() {
			count(name+" requests with "+metric.GetMetricName(), float64(metric.GetNumRequestsFinishedWithMetric()))
			count(name+" total of "+metric.GetMetricName(), metric.GetTotalMetricValue())
		}
		count(name+" requests with mem", float64(l.GetMemUtilization().GetNumRequestsFinishedWithMetric()))
		count(name+" total of mem", l.GetMemUtilization().GetTotalMetricValue())
		for _, e := range l.GetUpstreamEndpointStats() {
			name := name + "/" + e.GetAddress().GetSocketAddress().GetAddress()
			count(name+" ok", float64(e.GetTotalSuccessfulRequests()))
			count(name+" failed", float64(e.GetTotalErrorRequests()))
			count(name+" issued", float64(e.GetTotalIssuedRequests()))
			state(name+" now", e.GetTotalRequestsInProgress())
		}
	}
}

// send sends a report to a control plane. Its messages from the one with the number fails on do not arrive.
func (m *model) send(t *rapid.T, authority string, fails int) {
	if m.stream(authority) == nil {
		return
	}
	most := rapid.SampledFrom([]int{1, 200, 1 << 20}).Draw(t, "most")
	messages, at, ok := m.stream(authority).Take(most)
	if !ok {
		if m.wants[authority] != nil {
			t.Fatalf("%s asks for something, and is sent nothing", authority)
		}
		// Counts that it did not request are dropped.
		m.forget(authority, func(string) bool { return false })
		return
	}
	m.forget(authority, m.wants[authority])
	fails = min(fails, len(messages))
	states := map[string]uint64{}
	for i, message := range messages {
		for _, st := range message {
			if !m.wants[authority](st.GetClusterName()) {
				t.Fatalf("%s is sent %s, for which it does not ask", authority, st.GetClusterName())
			}
			each(st, func(name string, n float64) {
				if i < fails {
					m.of(st.GetClusterName()).add(name, -n)
				}
			}, func(name string, n uint64) { states[st.GetClusterName()+name] += n })
			if period := st.GetLoadReportInterval().AsDuration(); period < 0 || period > m.clock.Sub(time.Unix(1_000_000, 0))+time.Second {
				t.Fatalf("%s is of %v", st.GetClusterName(), period)
			}
		}
	}
	m.stream(authority).Restore(messages[fails:], at)
	for name, n := range m.states(authority) {
		if states[name] != n {
			t.Fatalf("%s is sent %s = %d, and it is %d", authority, name, states[name], n)
		}
		delete(states, name)
	}
	for name, n := range states {
		if n != 0 {
			t.Fatalf("%s is sent %s = %d, and there is none", authority, name, n)
		}
	}
	if fails == len(messages) {
		if left := m.sumOf(authority); len(left) > 0 {
			t.Fatalf("%s was sent everything but %v", authority, left)
		}
	}
	for cluster, counts := range m.pending {
		for name, n := range counts {
			if n < 0 {
				t.Fatalf("%s was sent %v of %s%s twice", authority, -n, cluster, name)
			}
		}
	}
}

func (m *model) forget(authority string, wants func(string) bool) {
	for cluster := range m.pending {
		if cluster[:1] == authority && !wants(cluster) {
			delete(m.pending, cluster)
		}
	}
}

// states returns the requests in progress that an authority requests, of all clients.
func (m *model) states(authority string) map[string]uint64 {
	sum := map[string]uint64{}
	for _, gauges := range m.gauges {
		for name, n := range gauges {
			if cluster := name[:3]; cluster[:1] == authority && m.wants[authority](cluster) && n > 0 {
				sum[name] += n
			}
		}
	}
	return sum
}

// sumOf returns the counts that an authority is still to be sent.
func (m *model) sumOf(authority string) (left []string) {
	for cluster, counts := range m.pending {
		for name, n := range counts {
			if cluster[:1] == authority {
				left = append(left, fmt.Sprintf("%s%s=%v", cluster, name, n))
			}
		}
	}
	slices.SortFunc(left, cmp.Compare[string])
	return left
}
