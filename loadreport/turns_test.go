package loadreport

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
)

// However many parts a client makes up, other goroutines get the collector while the parts are added, taken or
// dropped: they see some of them, and not always none or all.
func TestOthersHaveTheirTurnWhateverAClientMakesUp(t *testing.T) {
	const many = 100 * mostLocked
	zones := make([]string, many)
	drops := &lrsv3.LoadStatsRequest{ClusterStats: []*endpointv3.ClusterStats{{ClusterName: "a/shop"}}}
	metrics := reportOf("a/shop", 1, "z")
	for i := range many {
		zones[i] = fmt.Sprint("z", i)
		drops.ClusterStats[0].DroppedRequests = append(drops.ClusterStats[0].DroppedRequests,
			&endpointv3.ClusterStats_DroppedRequests{Category: zones[i], DroppedCount: 1})
		l := metrics.ClusterStats[0].UpstreamLocalityStats[0]
		l.LoadMetricStats = append(l.LoadMetricStats, &endpointv3.EndpointLoadMetricStats{MetricName: zones[i], NumRequestsFinishedWithMetric: 1})
	}
	nothing := func(*Collector) {}
	for _, tt := range []struct {
		name   string
		report *lrsv3.LoadStatsRequest
		before func(c *Collector) // others do not look yet
		then   func(c *Collector)
	}{
		{"drops are added", drops, nil, nothing},
		{"metrics are added", metrics, nil, nothing},
		{"localities are added", reportOf("a/shop", 1, zones...), nil, nothing},
		{"localities are taken", reportOf("a/shop", 1, zones...), nothing, func(c *Collector) { c.Take(1 << 20) }},
		{"localities are forgotten", reportOf("a/shop", 1, zones...), nothing, (*Collector).Refused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			seen := false
			for tries := 0; tries < 200 && !seen; tries++ {
				h := newTestHub()
				h.now = time.Now
				client := h.client("maker", "a")
				c := h.streams["a"]
				c.Asked(&lrsv3.LoadStatsResponse{SendAllClusters: true})
				if tt.before != nil {
					client.Report(tt.report)
				}
				var looking, over atomic.Bool
				done := make(chan bool)
				go func() {
					some := false
					for !over.Load() {
						n := c.parts("a/shop")
						some = some || n > 1 && n < many
						looking.Store(true)
					}
					done <- some
				}()
				for !looking.Load() { // it looks all the time from now on
					runtime.Gosched()
				}
				if tt.before == nil {
					client.Report(tt.report)
				}
				tt.then(c)
				over.Store(true)
				seen = <-done
				client.Close()
			}
			if !seen {
				t.Error("others never see a part of it")
			}
		})
	}
}

// parts returns how many drops, localities and metrics of its first locality a cluster has.
func (c *Collector) parts(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.sum.clusters[clusterKey{name: name}]
	if of == nil {
		return 0
	}
	n := len(of.drops) + len(of.rows)
	if at := of.rows[rowKey{zone: "z"}]; at != nil {
		n += len(at.metrics)
	}
	return n
}
