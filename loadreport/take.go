package loadreport

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// turns lets other goroutines have the lock. Clients choose how many parts a sum has, so the holder of the lock
// releases it for a moment after each mostLocked parts. Clients may then add to the sum.
type turns struct {
	lock sync.Locker
	n    int
}

// pause is called after each part.
func (t *turns) pause() {
	if t.n++; t.n >= mostLocked {
		t.unlocked(func() {})
	}
}

// unlocked runs f without the lock, so that others can have it.
func (t *turns) unlocked(f func()) {
	t.n = 0
	t.lock.Unlock()
	f()
	t.lock.Lock()
}

// take returns the sum for an ask, as the parts of messages, and resets the counts. most bounds the bytes of a message. Counts of
// clusters that the ask does not request are dropped. The states stay.
//
// A relay that receives these messages takes each for a whole report. So all rows with a state are in the last
// message, as far as it has room.
func (s *Sum) take(now time.Time, ask *Ask, most int, turns *turns) [][]*endpointv3.ClusterStats {
	w := writer{most: most}
	since := s.since
	s.since = now
	var idle, busy []clusterKey
	for key, c := range s.clusters {
		if _, ok := ask.wants(key.name); ok && c.busy > 0 {
			busy = append(busy, key)
		} else {
			idle = append(idle, key)
		}
		turns.pause()
	}
	turns.unlocked(func() {
		slices.SortFunc(idle, compareClusters)
		slices.SortFunc(busy, compareClusters)
	})
	for _, key := range slices.Concat(idle, busy) {
		spelled, ok := ask.wants(key.name)
		c := s.clusters[key]
		if !ok {
			s.clear(key, c, turns)
			continue
		}
		from := c.from
		switch {
		case !from.IsZero():
		case !since.IsZero(): // it has only states
			from = since
		default: // not reached: reports with a state have a period
			from = now
		}
		w.cluster(&clusterHead{spelled, key.service, now.Sub(from)}, c, ask.PerEndpoint, turns)
		s.release(key, c)
	}
	s.shrink()
	return w.messages()
}

func compareClusters(a, b clusterKey) int {
	return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.service, b.service))
}

// clear resets the counts of a cluster.
func (s *Sum) clear(key clusterKey, c *cluster, turns *turns) {
	_, drops := c.takeDrops()
	turns.unlocked(func() { releaseDrops(drops) })
	for at := range c.rows {
		_, metrics := c.takeRow(at)
		turns.unlocked(func() { releaseMetrics(metrics) })
	}
	s.release(key, c)
}

// release removes a cluster without rows and counts.
func (s *Sum) release(key clusterKey, c *cluster) {
	if len(c.rows) == 0 && c.from.IsZero() {
		c.release()
		delete(s.clusters, key)
	}
}

// shrink makes another map if few of many clusters are left: a map keeps the room that it once needed.
func (s *Sum) shrink() {
	if n := len(s.clusters); n > mostLocked || s.most < 16*mostLocked {
		return
	}
	s.clusters = maps.Clone(s.clusters)
	if len(s.clusters) == 0 {
		s.clusters = nil
	}
	s.most = len(s.clusters)
}

// empty reports whether there is nothing to send.
func (s *Sum) empty() bool { return len(s.clusters) == 0 }

// forget resets all counts.
func (s *Sum) forget(turns *turns) {
	s.since = time.Time{}
	for key, c := range s.clusters {
		s.clear(key, c, turns)
	}
	s.shrink()
}

// forgetAll drops everything, and returns a function that releases its memory in the budget, which may take long.
// There are no clients, and so no states.
func (s *Sum) forgetAll() (release func()) {
	was := s.clusters
	*s = Sum{}
	return func() {
		for _, c := range was {
			releaseDrops(c.drops)
			for _, at := range c.rows {
				releaseMetrics(at.metrics)
				at.release()
			}
			c.release()
		}
	}
}

// takeDrops returns and resets the counts that belong to no row.
func (c *cluster) takeDrops() (total uint64, drops map[string]*drop) {
	total, drops = c.dropped, c.drops
	c.dropped, c.drops, c.from = 0, nil, time.Time{}
	return total, drops
}

// takeRow returns and resets the counts of a row. The row stays only if it has a state.
func (c *cluster) takeRow(key rowKey) (was row, metrics map[metricKey]*metric) {
	at := c.rows[key]
	was, metrics = *at, at.metrics
	at.counts, at.metrics = counts{}, nil
	if at.states == (states{}) {
		at.release()
		delete(c.rows, key)
	}
	return was, metrics
}

func releaseDrops(drops map[string]*drop) {
	for _, d := range drops {
		d.release()
	}
}

func releaseMetrics(metrics map[metricKey]*metric) {
	for _, m := range metrics {
		m.release()
	}
}

// writer splits its input into messages.
type writer struct {
	most int
	done [][]*endpointv3.ClusterStats
	now  []*endpointv3.ClusterStats
	size int // of now, in bytes
}

// partOverhead is more than the tag and the length of a nested message, for each of the messages around it.
const partOverhead = 32

// fits begins the next message if size more bytes do not fit into the current one. It returns whether it did.
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

// clusterHead has the fields of a cluster that each message repeats.
type clusterHead struct {
	name, service string
	period        time.Duration
}

func (h *clusterHead) proto() *endpointv3.ClusterStats {
	return &endpointv3.ClusterStats{ClusterName: h.name, ClusterServiceName: h.service, LoadReportInterval: durationpb.New(h.period)}
}

// cluster takes the counts of a cluster and writes it, row by row.
func (w *writer) cluster(of *clusterHead, c *cluster, perEndpoint bool, turns *turns) {
	dropped, drops := c.takeDrops()
	keys := make([]rowKey, 0, len(c.rows))
	for key := range c.rows {
		keys = append(keys, key)
		turns.pause()
	}
	rows := clusterWriter{writer: w, clusterHead: of, perEndpoint: perEndpoint}
	turns.unlocked(func() {
		slices.SortFunc(keys, compareRows)
		rows.begin(dropped, drops)
		releaseDrops(drops)
	})
	for _, key := range keys {
		row, metrics := c.takeRow(key)
		turns.unlocked(func() {
			rows.row(key, &row)
			releaseMetrics(metrics)
		})
	}
}

// clusterWriter writes the rows of a cluster, in their order.
type clusterWriter struct {
	*writer
	*clusterHead
	perEndpoint bool
	st          *endpointv3.ClusterStats
	locality    *endpointv3.UpstreamLocalityStats // nil before the first
	at          rowKey                            // of locality
}

func (w *clusterWriter) begin(dropped uint64, drops map[string]*drop) {
	w.st = w.proto()
	w.st.TotalDroppedRequests = dropped
	for _, category := range slices.Sorted(maps.Keys(drops)) {
		w.st.DroppedRequests = append(w.st.DroppedRequests, &endpointv3.ClusterStats_DroppedRequests{Category: category, DroppedCount: drops[category].n})
	}
	w.fits(proto.Size(w.st))
	w.now = append(w.now, w.st)
}

// again begins the cluster again in the next message.
func (w *clusterWriter) again() {
	w.st = w.proto()
	w.now = append(w.now, w.st)
}

func (w *clusterWriter) row(key rowKey, row *row) {
	headSize := len(w.name) + len(w.service)
	if key.endpoint == "" {
		w.locality, w.at = row.locality(key), key
		if !w.fits(proto.Size(w.locality)) {
			w.size += headSize + partOverhead
			w.again()
		}
		w.st.UpstreamLocalityStats = append(w.st.UpstreamLocalityStats, w.locality)
		return
	}
	if !w.perEndpoint {
		return
	}
	endpoint := row.endpoint()
	if !w.fits(proto.Size(endpoint)) || w.locality == nil || w.at != key.locality() {
		w.at = key.locality()
		w.locality = &endpointv3.UpstreamLocalityStats{Locality: w.at.proto(), Priority: w.at.priority}
		if len(w.now) == 0 {
			w.again()
		}
		w.size += headSize + proto.Size(w.locality) + 2*partOverhead
		w.st.UpstreamLocalityStats = append(w.st.UpstreamLocalityStats, w.locality)
	}
	w.locality.UpstreamEndpointStats = append(w.locality.UpstreamEndpointStats, endpoint)
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
