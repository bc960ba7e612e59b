package loadreport

import (
	"fmt"
	"runtime"
	"testing"

	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
)

// The memory of a client that reports, in addition to its stream. It grows with the parts that the client reports,
// because the newest state of each is kept (requests in progress). docs/load-reports.md has the figures.
func TestMemoryOfAClientThatReports(t *testing.T) {
	const clients = 2000
	for _, tt := range []struct{ parts, most int }{{1, 4 << 10}, {10, 6 << 10}, {100, 50 << 10}} {
		h := newTestHub()
		all := make([]*Client, 0, clients)
		report := func(c *Client) {
			all := new(lrsv3.LoadStatsRequest)
			for i := range tt.parts {
				st := reportOf(fmt.Sprintf("a/%d", i), 1, "z").GetClusterStats()[0]
				st.UpstreamLocalityStats[0].TotalRequestsInProgress = 1
				all.ClusterStats = append(all.ClusterStats, st)
			}
			c.Report(all)
		}
		first := h.client("first", "a")
		h.streams["a"].Asked(&lrsv3.LoadStatsResponse{SendAllClusters: true})
		report(first) // the sums, which clients share
		before := liveHeap()
		for i := range clients {
			c := h.client(fmt.Sprint("c", i), "a")
			report(c)
			all = append(all, c)
		}
		each := int(liveHeap()-before) / clients
		t.Logf("%d parts: %d bytes for each client", tt.parts, each)
		if each > tt.most {
			t.Errorf("%d parts: %d bytes for each client, want at most %d", tt.parts, each, tt.most)
		}
		runtime.KeepAlive(all)
	}
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
