package loadreport

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// reportOf returns a report of successful requests in the zones of a cluster.
func reportOf(cluster string, ok uint64, zones ...string) *lrsv3.LoadStatsRequest {
	st := &endpointv3.ClusterStats{ClusterName: cluster, LoadReportInterval: durationpb.New(time.Second)}
	for _, zone := range zones {
		st.UpstreamLocalityStats = append(st.UpstreamLocalityStats, &endpointv3.UpstreamLocalityStats{
			Locality: &corev3.Locality{Zone: zone}, TotalSuccessfulRequests: ok,
		})
	}
	return &lrsv3.LoadStatsRequest{ClusterStats: []*endpointv3.ClusterStats{st}}
}

func (h *testHub) client(identity string, authorities ...string) *Client {
	return h.Open(ClientOptions{Node: &corev3.Node{}, Account: identity, Names: func() Names { return &testNames{scopes: authorities} }})
}

// successful returns the number of successful requests that the control plane is sent.
func successful(t *testing.T, c *Collector) (sum uint64) {
	t.Helper()
	messages, _, _ := c.Take(1 << 20)
	for _, message := range messages {
		for _, st := range message {
			for _, l := range st.GetUpstreamLocalityStats() {
				sum += l.GetTotalSuccessfulRequests()
			}
		}
	}
	return sum
}

// The parts that one identity makes up take at most its share of memory, and nothing of other identities' shares.
// Others' reports on existing parts still count. After the control plane has been sent the parts, there is room
// again.
func TestWhatClientsMakeUpIsBounded(t *testing.T) {
	h := newTestHub()
	h.budget.ofIdentity, h.budget.ofAll = 20*rowBytes, 50*rowBytes
	liar, honest := h.client("liar", "a"), h.client("honest", "a")
	h.streams["a"].Asked(&lrsv3.LoadStatsResponse{SendAllClusters: true})
	for i := range 100 {
		liar.Report(reportOf(fmt.Sprintf("a/%d", i), 1, "z"))
	}
	if used := h.budget.used; used > 20*rowBytes {
		t.Errorf("one identity uses %d bytes, more than its %d", used, 20*rowBytes)
	}
	if n := h.Stats().Discarded["limit"]; n == 0 {
		t.Error("nothing is counted as discarded")
	}
	honest.Report(reportOf("a/0", 10, "z"))
	honest.Report(reportOf("a/shop", 100, "z"))
	if sum := successful(t, h.streams["a"]); sum < 110 || sum > 120 {
		t.Errorf("the control plane is sent %d requests, want the 110 of the honest one and at most 10 others", sum)
	}
	if used := h.budget.used; used != 0 {
		t.Errorf("%d bytes are used after everything was sent", used)
	}
	liar.Report(reportOf("a/new", 1, "z"))
	if sum := successful(t, h.streams["a"]); sum != 1 {
		t.Errorf("the control plane is sent %d requests, want 1", sum)
	}
}

// All identities together are bounded, too.
func TestWhatAllClientsMakeUpIsBounded(t *testing.T) {
	h := newTestHub()
	h.budget.ofIdentity, h.budget.ofAll = 20*rowBytes, 50*rowBytes
	for i := range 100 {
		c := h.client(fmt.Sprint(i), "a")
		c.Report(reportOf(fmt.Sprintf("a/%d", i), 1, "z"))
		c.Close()
	}
	if used := h.budget.used; used > 50*rowBytes {
		t.Errorf("all identities use %d bytes, more than %d", used, 50*rowBytes)
	}
	h.streams["a"].Refused()
	if used, accounts := h.budget.used, len(h.budget.accounts); used != 0 || accounts != 0 {
		t.Errorf("%d bytes of %d identities are used for nothing", used, accounts)
	}
}

// One client cannot spoil the sum of all: neither by a metric that is not a number, nor by counts that overflow it,
// nor by requests in progress, which are subtracted again.
func TestOneClientCannotSpoilTheSum(t *testing.T) {
	h := newTestHub()
	liar, honest := h.client("liar", "a"), h.client("honest", "a")
	h.streams["a"].Asked(&lrsv3.LoadStatsResponse{SendAllClusters: true})
	lie := func(total float64) {
		r := reportOf("a/shop", math.MaxUint64, "z")
		r.ClusterStats[0].UpstreamLocalityStats[0].TotalRequestsInProgress = math.MaxUint64
		r.ClusterStats[0].UpstreamLocalityStats[0].LoadMetricStats = []*endpointv3.EndpointLoadMetricStats{{MetricName: "rps", NumRequestsFinishedWithMetric: 1, TotalMetricValue: total}}
		liar.Report(r)
	}
	lie(math.NaN())
	lie(math.Inf(1))
	lie(math.Inf(-1))
	r := reportOf("a/shop", 1, "z")
	r.ClusterStats[0].UpstreamLocalityStats[0].TotalRequestsInProgress = 3
	r.ClusterStats[0].UpstreamLocalityStats[0].LoadMetricStats = []*endpointv3.EndpointLoadMetricStats{{MetricName: "rps", NumRequestsFinishedWithMetric: 2, TotalMetricValue: 2.5}}
	honest.Report(r)
	liar.Close()
	messages, _, _ := h.streams["a"].Take(1 << 20)
	l := messages[0][0].GetUpstreamLocalityStats()[0]
	if n := l.GetTotalSuccessfulRequests(); n != math.MaxUint64 {
		t.Errorf("the sum is %d, less than what one client has reported", n)
	}
	if n := l.GetTotalRequestsInProgress(); n != 3 {
		t.Errorf("%d requests are in progress, want 3", n)
	}
	if m := l.GetLoadMetricStats(); len(m) != 1 || m[0].GetNumRequestsFinishedWithMetric() != 2 || m[0].GetTotalMetricValue() != 2.5 {
		t.Errorf("the metric is %v, want that of the honest client alone", m)
	}
}

// Partitions whose clients have left, and whose control planes take no reports, do not accumulate.
func TestWhatNobodyTakesIsAbandoned(t *testing.T) {
	h := newTestHub()
	const partitions = mostOrphans + 10
	for i := range partitions {
		authority := fmt.Sprint("p", i)
		c := h.client("one", authority)
		h.streams[authority].Asked(&lrsv3.LoadStatsResponse{SendAllClusters: true})
		c.Report(reportOf(authority+"/shop", 1, "z"))
		c.Close()
	}
	over := 0
	for _, c := range h.streams {
		if c.Over() {
			over++
		}
	}
	if over != 10 || h.Stats().Discarded["abandoned"] != 10 || len(h.collectors) != mostOrphans {
		t.Errorf("%d streams are over, %d clusters discarded, and %d collectors left; want 10, 10, %d", over, h.Stats().Discarded["abandoned"], len(h.collectors), mostOrphans)
	}
}

// The sums stay exact while clients report, connect and leave, the control plane is sent reports, and the
// configuration changes, all at the same time.
func TestSumsAreExactWhileEverythingHappensAtOnce(t *testing.T) {
	h := newTestHub()
	h.now = time.Now
	keeper := h.client("keeper", "a")
	h.streams["a"].Asked(&lrsv3.LoadStatsResponse{SendAllClusters: true})
	const clients, reports = 8, 200
	zones := make([]string, 3*mostLocked) // several times under the lock
	for i := range zones {
		zones[i] = fmt.Sprint("z", i)
	}
	var working sync.WaitGroup
	for i := range clients {
		working.Go(func() {
			c := h.client(fmt.Sprint(i%3), "a")
			for n := range reports {
				c.Report(reportOf("a/shop", 1, zones[:1+n%len(zones)]...))
				c.Response()
				if n%50 == 49 {
					c.Close()
					c = h.client(fmt.Sprint(i%3), "a")
				}
			}
			c.Close()
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		working.Wait()
	}()
	var sum uint64
	for n := 0; ; n++ {
		messages, at, _ := h.streams["a"].Take(1 << 12)
		if n%2 == 0 && len(messages) > 0 { // half of them cannot be sent
			h.streams["a"].Restore(messages[len(messages)/2:], at)
			messages = messages[:len(messages)/2]
		}
		for _, message := range messages {
			for _, st := range message {
				for _, l := range st.GetUpstreamLocalityStats() {
					sum += l.GetTotalSuccessfulRequests()
				}
			}
		}
		if n%10 == 0 {
			h.Reconfigure()
		}
		select {
		case <-done:
			sum += successful(t, h.streams["a"])
			var want uint64
			for n := range reports {
				want += clients * uint64(1+n%len(zones))
			}
			if sum != want {
				t.Errorf("the control plane was sent %d, want %d", sum, want)
			}
			keeper.Close()
			return
		default:
		}
	}
}
