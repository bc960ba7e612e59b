package loadreport

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Take returns the sum of what the control plane asks for, as the parts of messages of no more than most
// bytes, and begins anew. Counts of clusters that it does not ask for are forgotten. The states stay.
//
// To a relay that gets them, each message is a whole report. So what has a state is in the last
// message, as far as it has room.
func (s *Sum) Take(now time.Time, ask *Ask, most int) [][]*endpointv3.ClusterStats {
	t := s.take(now, ask, most)
	for t.next() {
	}
	return t.messages()
}

// taking is a Take in steps, between which clients may add to the sum.
type taking struct {
	writer
	sum   *Sum
	ask   *Ask
	now   time.Time
	since time.Time
	keys  []clusterKey
}

func (s *Sum) take(now time.Time, ask *Ask, most int) *taking {
	t := &taking{writer: writer{most: most}, sum: s, ask: ask, now: now, since: s.since}
	for key, c := range s.clusters {
		if _, ok := ask.wants(key.name); !ok || c.idle() {
			t.keys = append(t.keys, key)
		}
	}
	idle := len(t.keys)
	for key, c := range s.clusters {
		if _, ok := ask.wants(key.name); ok && !c.idle() {
			t.keys = append(t.keys, key)
		}
	}
	slices.SortFunc(t.keys[:idle], compareClusters)
	slices.SortFunc(t.keys[idle:], compareClusters)
	s.since = now
	return t
}

func compareClusters(a, b clusterKey) int {
	return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.service, b.service))
}

// next takes the next cluster, and returns false if there is none.
func (t *taking) next() bool {
	if len(t.keys) == 0 {
		return false
	}
	key := t.keys[0]
	t.keys = t.keys[1:]
	c := t.sum.clusters[key]
	if spelled, ok := t.ask.wants(key.name); ok {
		from := c.from
		switch {
		case !from.IsZero():
		case !t.since.IsZero(): // it has states only
			from = t.since
		default: // not reached: a state comes with a report, which has a period
			from = t.now
		}
		t.cluster(spelled, key.service, c, t.now.Sub(from), t.ask.PerEndpoint)
	}
	t.sum.clear(key, c)
	return true
}

// clear begins the counts of a cluster anew.
func (s *Sum) clear(key clusterKey, c *cluster) {
	if c.clear(); len(c.rows) == 0 {
		c.release()
		delete(s.clusters, key)
	}
}

// Restore puts back a part of what Take returned at that time, as it could not be sent. nobody is a Reporter without
// states.
func (s *Sum) Restore(st *endpointv3.ClusterStats, taken time.Time, canonical func(string) string, nobody *Reporter) {
	name, period := canonical(st.GetClusterName()), st.GetLoadReportInterval().AsDuration()
	add := s.Add(taken, nobody, name, st, period)
	add.Cluster(st)
	for _, l := range st.GetUpstreamLocalityStats() {
		l = proto.CloneOf(l)
		l.TotalRequestsInProgress, l.TotalActiveConnections = 0, 0 // these are still there
		add.Locality(l)
		for _, e := range l.GetUpstreamEndpointStats() {
			e.TotalRequestsInProgress = 0
			add.Endpoint(l, e)
		}
	}
	if c, from := s.clusters[add.key], taken.Add(-period); from.Before(c.from) {
		c.from = from
	}
}

// empty reports whether there is nothing to send.
func (s *Sum) empty() bool { return len(s.clusters) == 0 }

// forget forgets all counts.
func (s *Sum) forget() {
	for key, c := range s.clusters {
		s.clear(key, c)
	}
	s.since = time.Time{}
}

// idle reports whether the cluster has no state.
func (c *cluster) idle() bool {
	for _, at := range c.rows {
		if at.states != (states{}) {
			return false
		}
	}
	return true
}

// clear begins the counts anew. Only rows that have a state stay.
func (c *cluster) clear() {
	c.dropped, c.from = 0, time.Time{}
	for _, d := range c.drops {
		d.release()
	}
	c.drops = nil
	for key, at := range c.rows {
		for _, m := range at.metrics {
			m.release()
		}
		at.counts, at.metrics = counts{}, nil
		if at.states == (states{}) {
			at.release()
			delete(c.rows, key)
		}
	}
}

// writer cuts what it is given into messages.
type writer struct {
	most int
	done [][]*endpointv3.ClusterStats
	now  []*endpointv3.ClusterStats
	size int // of now, in bytes
}

// partOverhead is more than the tag and the length of a message in another take, for each of the
// messages around it.
const partOverhead = 32

// fits begins the next message if size more bytes have no room in the present one. It returns whether
// it has.
func (w *writer) fits(size int) bool {
	size += partOverhead
	if w.size+size > w.most && w.size > 0 {
		w.done = append(w.done, w.now)
		w.now, w.size = nil, size
		return false
	}
	w.size += size
	return true
}

func (w *writer) messages() [][]*endpointv3.ClusterStats {
	if w.now != nil {
		w.done = append(w.done, w.now)
		w.now = nil
	}
	return w.done
}

// cluster writes a cluster, row by row.
func (w *writer) cluster(name, service string, c *cluster, period time.Duration, perEndpoint bool) {
	head := func() *endpointv3.ClusterStats {
		st := &endpointv3.ClusterStats{ClusterName: name, ClusterServiceName: service, LoadReportInterval: durationpb.New(period)}
		w.now = append(w.now, st)
		return st
	}
	first := &endpointv3.ClusterStats{ClusterName: name, ClusterServiceName: service, TotalDroppedRequests: c.dropped, LoadReportInterval: durationpb.New(period)}
	for _, category := range slices.Sorted(maps.Keys(c.drops)) {
		first.DroppedRequests = append(first.DroppedRequests, &endpointv3.ClusterStats_DroppedRequests{Category: category, DroppedCount: c.drops[category].n})
	}
	w.fits(proto.Size(first))
	w.now = append(w.now, first)
	st, headSize := first, len(name)+len(service)
	var locality *endpointv3.UpstreamLocalityStats
	var at rowKey
	for _, key := range slices.SortedFunc(maps.Keys(c.rows), compareRows) {
		row := c.rows[key]
		if key.endpoint == "" {
			locality, at = row.locality(key), key
			if !w.fits(proto.Size(locality)) {
				w.size += headSize + partOverhead
				st = head()
			}
			st.UpstreamLocalityStats = append(st.UpstreamLocalityStats, locality)
			continue
		}
		if !perEndpoint {
			continue
		}
		endpoint := row.endpoint()
		if !w.fits(proto.Size(endpoint)) || locality == nil || at != key.locality() {
			at = key.locality()
			locality = &endpointv3.UpstreamLocalityStats{Locality: at.proto(), Priority: at.priority}
			if len(w.now) == 0 {
				st = head()
			}
			w.size += headSize + proto.Size(locality) + 2*partOverhead
			st.UpstreamLocalityStats = append(st.UpstreamLocalityStats, locality)
		}
		locality.UpstreamEndpointStats = append(locality.UpstreamEndpointStats, endpoint)
	}
}

func compareRows(a, b rowKey) int {
	return cmp.Or(cmp.Compare(a.region, b.region), cmp.Compare(a.zone, b.zone), cmp.Compare(a.subZone, b.subZone),
		cmp.Compare(a.priority, b.priority), cmp.Compare(a.endpoint, b.endpoint))
}

func (k rowKey) proto() *corev3.Locality {
	return &corev3.Locality{Region: k.region, Zone: k.zone, SubZone: k.subZone}
}

func (at *row) locality(k rowKey) *endpointv3.UpstreamLocalityStats {
	return &endpointv3.UpstreamLocalityStats{
		Locality: k.proto(), Priority: k.priority,
		TotalSuccessfulRequests: at.counts.successful, TotalErrorRequests: at.counts.failed, TotalIssuedRequests: at.counts.issued,
		TotalNewConnections: at.counts.newConnections, TotalFailConnections: at.counts.failedConnections,
		TotalRequestsInProgress: at.states.inProgress, TotalActiveConnections: at.states.connections,
		LoadMetricStats:        at.named(),
		CpuUtilization:         at.unnamed(cpuMetric),
		MemUtilization:         at.unnamed(memMetric),
		ApplicationUtilization: at.unnamed(applicationMetric),
	}
}

func (at *row) endpoint() *endpointv3.UpstreamEndpointStats {
	return &endpointv3.UpstreamEndpointStats{
		Address: at.address, Metadata: at.metadata,
		TotalSuccessfulRequests: at.counts.successful, TotalErrorRequests: at.counts.failed, TotalIssuedRequests: at.counts.issued,
		TotalRequestsInProgress: at.states.inProgress,
		LoadMetricStats:         at.named(),
	}
}

func (at *row) named() (all []*endpointv3.EndpointLoadMetricStats) {
	for key, m := range at.metrics {
		if key.kind == namedMetric {
			all = append(all, &endpointv3.EndpointLoadMetricStats{MetricName: key.name, NumRequestsFinishedWithMetric: m.requests, TotalMetricValue: m.total})
		}
	}
	slices.SortFunc(all, func(a, b *endpointv3.EndpointLoadMetricStats) int { return cmp.Compare(a.MetricName, b.MetricName) })
	return all
}

func (at *row) unnamed(kind metricKind) *endpointv3.UnnamedEndpointLoadMetricStats {
	m := at.metrics[metricKey{kind: kind}]
	if m == nil {
		return nil
	}
	return &endpointv3.UnnamedEndpointLoadMetricStats{NumRequestsFinishedWithMetric: m.requests, TotalMetricValue: m.total}
}
