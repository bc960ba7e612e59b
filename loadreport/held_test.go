package loadreport

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
)

// TestWhatIsHeldIsCharged checks that reports of made-up parts take no more memory than they are charged: in the sums,
// and in the messages that are made of them. After the messages, nothing stays.
func TestWhatIsHeldIsCharged(t *testing.T) {
	const n = 20000
	locality := func(cluster, zone string) (*lrsv3.LoadStatsRequest, *endpointv3.UpstreamLocalityStats) {
		r := reportOf(cluster, 1, zone)
		return r, r.GetClusterStats()[0].GetUpstreamLocalityStats()[0]
	}
	for kind, report := range map[string]func(i int) *lrsv3.LoadStatsRequest{
		"clusters":                 func(i int) *lrsv3.LoadStatsRequest { return reportOf(fmt.Sprint("a/", i), 1) },
		"clusters with a locality": func(i int) *lrsv3.LoadStatsRequest { return reportOf(fmt.Sprint("a/", i), 1, "z") },
		"localities":               func(i int) *lrsv3.LoadStatsRequest { return reportOf(fmt.Sprint("a/", i/100), 1, fmt.Sprint(i)) },
		"requests in progress": func(i int) *lrsv3.LoadStatsRequest {
			r := new(lrsv3.LoadStatsRequest)
			if i != n-1 { // each report replaces the one before
				return r
			}
			for i := range n {
				one, l := locality(fmt.Sprint("a/", i), "z")
				l.TotalRequestsInProgress = 1
				r.ClusterStats = append(r.ClusterStats, one.GetClusterStats()...)
			}
			return r
		},
		"clusters with a metric": func(i int) *lrsv3.LoadStatsRequest {
			r, l := locality(fmt.Sprint("a/", i), "z")
			l.LoadMetricStats = []*endpointv3.EndpointLoadMetricStats{{MetricName: fmt.Sprint("m", i)}}
			return r
		},
		"clusters with a drop": func(i int) *lrsv3.LoadStatsRequest {
			r := reportOf(fmt.Sprint("a/", i), 1)
			r.GetClusterStats()[0].DroppedRequests = []*endpointv3.ClusterStats_DroppedRequests{{Category: fmt.Sprint(i)}}
			return r
		},
		"endpoints": func(i int) *lrsv3.LoadStatsRequest {
			r, l := locality(fmt.Sprint("a/", i/10), "z")
			l.UpstreamEndpointStats = []*endpointv3.UpstreamEndpointStats{{Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: fmt.Sprint(i)}}}}}
			return r
		},
		"long names": func(i int) *lrsv3.LoadStatsRequest {
			if i >= n/100 {
				return new(lrsv3.LoadStatsRequest)
			}
			return reportOf(strings.Repeat("a", 1<<12)+fmt.Sprint("/", i), 1)
		},
	} {
		h := newTestHub()
		h.budget.ofIdentity = mostOfAll
		c := h.client("liar", "a", strings.Repeat("a", 1<<12))
		for _, of := range h.streams {
			of.Asked(&lrsv3.LoadStatsResponse{SendAllClusters: true, ReportEndpointGranularity: true})
		}
		before := liveHeap()
		for i := range n {
			c.Report(report(i))
		}
		held, charged := int(liveHeap()-before), h.budget.used
		if held > charged {
			t.Errorf("%s: %d bytes are held, and %d are charged", kind, held, charged)
		}
		c.Close()
		for _, of := range h.streams {
			messages, _, _ := of.Take(1 << 20)
			if both := int(liveHeap() - before); both > charged {
				t.Errorf("%s: the messages to a control plane take %d bytes, and %d are charged", kind, both, charged)
			}
			runtime.KeepAlive(messages)
		}
		if left := int(liveHeap() - before); left > charged/50 || h.budget.used > 0 {
			t.Errorf("%s: %d bytes stay after all were sent, and %d are charged", kind, left, h.budget.used)
		}
		t.Logf("%s: %d bytes were held of %d", kind, held, charged)
		runtime.KeepAlive(h)
	}
}

// TestWhatNobodyTakesIsForgotten checks that reports whose clients have left do not wait for ever for a control plane.
func TestWhatNobodyTakesIsForgotten(t *testing.T) {
	h := newTestHub()
	now := time.Now()
	h.now = func() time.Time { return now }
	c := h.client("one", "a")
	of := h.streams["a"]
	of.Asked(&lrsv3.LoadStatsResponse{SendAllClusters: true})
	c.Report(reportOf("a/shop", 1, "z"))
	of.Failed()
	if of.Alone() {
		t.Error("the client is not seen")
	}
	c.Close()
	now = now.Add(mostOrphaned - time.Second)
	if !of.Alone() || of.Over() {
		t.Error("it is over while the control plane may come back")
	}
	now = now.Add(time.Second)
	if !of.Over() || h.budget.used > 0 || h.Stats().Discarded["abandoned"] != 1 {
		t.Errorf("%d bytes are held, and %d clusters discarded", h.budget.used, h.Stats().Discarded["abandoned"])
	}
}
