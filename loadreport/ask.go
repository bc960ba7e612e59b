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

// Ask is what a control plane wants reported. It does not change.
type Ask struct {
	// All: it wants every cluster (send_all_clusters).
	All bool
	// spellings has the other clusters by their canonical names, as the control plane spells them.
	spellings map[string]string
	// Interval is the time between two reports.
	Interval time.Duration
	// PerEndpoint: it wants the load of each endpoint, too (report_endpoint_granularity).
	PerEndpoint bool
}

const (
	// defaultInterval is that of a control plane that gives none, or none that can be: clients that are
	// sent such an interval report without a pause, or crash.
	defaultInterval = 10 * time.Second
	// leastInterval bounds what reports cost, for us and for clients.
	leastInterval = 10 * time.Millisecond
)

// NewAsk returns what a response asks for. canonical returns the name by which the relay knows a cluster.
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

// wants reports whether the control plane wants a cluster, by its canonical name, and returns how the
// control plane spells it.
func (a *Ask) wants(name string) (spelled string, ok bool) {
	if a.All {
		return name, true
	}
	spelled, ok = a.spellings[name]
	return spelled, ok
}

// asksNothing reports whether it wants no cluster.
func (a *Ask) asksNothing() bool { return !a.All && len(a.spellings) == 0 }

// scopedAsk is what the control plane of a scope wants.
type scopedAsk struct {
	*Ask
	scope cache.Scope
}

// union returns what a client is asked for so that all asks have what they want. may says whether the
// control plane of a scope may ask the client for a cluster. There is at least one ask.
func union(asks []scopedAsk, supportsAll bool, may func(scope cache.Scope, cluster string) bool) *lrsv3.LoadStatsResponse {
	r := &lrsv3.LoadStatsResponse{}
	var every time.Duration // of those that ask for something
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
	// There are clients that need an interval also if nothing is asked for.
	r.LoadReportingInterval = durationpb.New(cmp.Or(every, shortest))
	if r.SendAllClusters {
		r.Clusters = nil
	}
	slices.Sort(r.Clusters)
	r.Clusters = slices.Compact(r.Clusters)
	return r
}

// responses are those that were made last. Clients that are sent the same keep the same. The zero value is ready.
type responses struct {
	mu   sync.Mutex
	last [16]*lrsv3.LoadStatsResponse
	next int
}

// share returns a response that is equal to r, as many clients as possible the same.
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

// String describes it for tests and operators.
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
