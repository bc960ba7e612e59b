package loadreport

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/cache"
)

// Ask is a control plane's request for reports. It does not change.
type Ask struct {
	// All: it requests every cluster (send_all_clusters).
	All bool
	// spellings has the control plane's spellings of the other clusters, by their canonical names.
	spellings map[string]string
	// Interval is the time between two reports.
	Interval time.Duration
	// PerEndpoint: it also requests the load of each endpoint (report_endpoint_granularity).
	PerEndpoint bool
}

const (
	// defaultInterval is used if a control plane sends no valid interval: clients that receive an invalid one report
	// without a pause, or crash.
	defaultInterval = 10 * time.Second
	// leastInterval bounds the cost of reports, for the relay and for clients.
	leastInterval = 10 * time.Millisecond
)

// NewAsk returns the Ask of a response. canonical returns the name by which the relay knows a cluster.
func NewAsk(r *lrsv3.LoadStatsResponse, canonical func(string) string) *Ask {
	a := &Ask{All: r.GetSendAllClusters(), PerEndpoint: r.GetReportEndpointGranularity(), Interval: defaultInterval}
	if every := r.GetLoadReportingInterval(); every.CheckValid() == nil && every.AsDuration() > 0 {
		a.Interval = max(every.AsDuration(), leastInterval)
	}
	if !a.All { // LoadStatsResponse.clusters: "Not populated if send_all_clusters is true."
		a.spellings = make(map[string]string, len(r.GetClusters()))
		for _, name := range r.GetClusters() {
			a.spellings[canonical(name)] = name
		}
	}
	return a
}

// wants reports whether the control plane requests a cluster, by its canonical name, and returns the control plane's
// spelling of it.
func (a *Ask) wants(name string) (spelled string, ok bool) {
	if a.All {
		return name, true
	}
	spelled, ok = a.spellings[name]
	return spelled, ok
}

// asksNothing reports whether it requests no cluster.
func (a *Ask) asksNothing() bool { return !a.All && len(a.spellings) == 0 }

// scopedAsk is the Ask of a scope's control plane.
type scopedAsk struct {
	*Ask
	scope cache.Scope
}

// union returns the response to a client that satisfies all asks. may reports whether the control plane of a scope
// may request a cluster from the client. There is at least one ask.
func union(asks []scopedAsk, supportsAll bool, may func(scope cache.Scope, cluster string) bool) *lrsv3.LoadStatsResponse {
	r := &lrsv3.LoadStatsResponse{}
	var every time.Duration // of asks that request a cluster
	shortest := asks[0].Interval
	for _, a := range asks {
		shortest = min(shortest, a.Interval)
		if a.asksNothing() {
			continue
		}
		if every == 0 || a.Interval < every {
			every = a.Interval
		}
		r.SendAllClusters = r.SendAllClusters || a.All && supportsAll
		r.ReportEndpointGranularity = r.ReportEndpointGranularity || a.PerEndpoint
		for _, name := range a.spellings {
			if may(a.scope, name) {
				r.Clusters = append(r.Clusters, name)
			}
		}
	}
	// Some clients need an interval even if no cluster is requested.
	r.LoadReportingInterval = durationpb.New(cmp.Or(every, shortest))
	if r.SendAllClusters {
		r.Clusters = nil
	}
	slices.Sort(r.Clusters)
	r.Clusters = slices.Compact(r.Clusters)
	return r
}

// responses has the responses that were made last, so that clients that are sent equal ones share one in memory. The
// zero value is ready.
type responses struct {
	mu   sync.Mutex
	last [16]*lrsv3.LoadStatsResponse
	next int
}

// share returns a response that equals r, the same one for as many clients as possible.
func (s *responses) share(r *lrsv3.LoadStatsResponse) *lrsv3.LoadStatsResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range s.last {
		if known != nil && proto.Equal(known, r) {
			return known
		}
	}
	s.last[s.next] = r
	s.next = (s.next + 1) % len(s.last)
	return r
}

// String describes the Ask for tests and operators.
func (a *Ask) String() string {
	what := "all clusters"
	if !a.All {
		names := make([]string, 0, len(a.spellings))
		for _, name := range a.spellings {
			names = append(names, name)
		}
		slices.Sort(names)
		what = "[" + strings.Join(names, " ") + "]"
	}
	if a.PerEndpoint {
		what += " per endpoint"
	}
	return fmt.Sprintf("%s every %v", what, a.Interval)
}
