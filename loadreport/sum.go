package loadreport

import (
	"math"
	"math/bits"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Sum is the sum of clients' reports since it was last taken. Counts add up. States (requests in progress) are the
// sums of each client's newest state, and stay when the sum is taken. The zero value is ready. It is not safe for
// concurrent use.
type Sum struct {
	clusters map[clusterKey]*cluster
	most     int // clusters that the map has had at once
	// since is when the sum was last taken; zero before that.
	since time.Time
}

// clusterKey identifies a cluster.
type clusterKey struct{ name, service string }

// cluster is the load of one cluster.
type cluster struct {
	charge
	// from is the beginning of the period that the counts cover.
	from    time.Time
	dropped uint64
	drops   map[string]*drop // by category
	rows    map[rowKey]*row
	busy    int // number of rows with a state
}

// drop counts the dropped requests of one category.
type drop struct {
	charge
	n uint64
}

// rowKey identifies a locality of a cluster, or an endpoint there.
type rowKey struct {
	region, zone, subZone string
	priority              uint32
	// endpoint is an encoded address, "" for the locality itself.
	endpoint string
}

// locality returns the key of the endpoint's locality.
func (k rowKey) locality() rowKey {
	k.endpoint = ""
	return k
}

// row is the load of a locality or an endpoint.
type row struct {
	charge
	counts  counts
	states  states // of all clients together
	metrics map[metricKey]*metric
	// address and metadata are set for an endpoint.
	address  *corev3.Address
	metadata *structpb.Struct
}

// counts are the numbers that add up.
type counts struct{ successful, failed, issued, newConnections, failedConnections uint64 }

func (c *counts) add(o counts) {
	c.successful = plus(c.successful, o.successful)
	c.failed = plus(c.failed, o.failed)
	c.issued = plus(c.issued, o.issued)
	c.newConnections = plus(c.newConnections, o.newConnections)
	c.failedConnections = plus(c.failedConnections, o.failedConnections)
}

// plus adds, but does not overflow: a client that lies cannot make the sum small.
func plus(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}

// states are numbers of what is present, not of what has happened.
type states struct{ inProgress, connections uint64 }

// mostState bounds a state of one client. So the sum over all clients cannot overflow, and a client's state can be
// subtracted again.
const mostState = 1 << 40

func (s states) bounded() states {
	return states{min(s.inProgress, mostState), min(s.connections, mostState)}
}

// metricKey identifies a metric that endpoints have reported (ORCA).
type metricKey struct {
	kind metricKind
	name string // of a named metric
}

type metricKind uint8

const (
	namedMetric metricKind = iota
	cpuMetric
	memMetric
	applicationMetric
)

// metric is the sum of a metric over the requests that reported it.
type metric struct {
	charge
	requests uint64
	total    float64
}

// States are the newest states of one client, by cluster and row, without zeros. They are included in the states of
// the Sum.
type States map[stateKey]clientState

type stateKey struct {
	cluster clusterKey
	row     rowKey
}

type clientState struct {
	charge
	states
}

// Reporter is a client as a Sum sees it. During a report, is has the states that the report has mentioned so far, and
// was those of the previous report that it has not mentioned yet.
type Reporter struct {
	was, is States
	account *account
}

// Begin begins a report. Clusters, localities and endpoints that it does not mention have nothing in progress:
// clients leave out idle ones.
func (r *Reporter) Begin() { r.was, r.is = r.is, States{} }

// Adding adds one cluster of a report, part by part. Its methods return how many parts were refused. The sum may be
// taken between two calls.
type Adding struct {
	sum      *Sum
	reporter *Reporter
	key      clusterKey
	from     time.Time
}

// Add begins to add a cluster under its canonical name. covers is the period that the report claims to cover, up to
// now.
func (s *Sum) Add(now time.Time, r *Reporter, name string, st *endpointv3.ClusterStats, covers time.Duration) Adding {
	return Adding{s, r, clusterKey{name, st.GetClusterServiceName()}, now.Add(-covers)}
}

// cluster returns the cluster, nil if there is no room for it.
func (a Adding) cluster() *cluster {
	c := a.sum.cluster(a.key, a.reporter.account)
	if c != nil {
		c.begins(a.sum.since, a.from)
	}
	return c
}

// begins notes that the counts cover a period from the time from; but not from before the sum was last taken, which
// included all earlier counts.
func (c *cluster) begins(since, from time.Time) {
	if !since.IsZero() {
		from = since
	}
	if c.from.IsZero() || from.Before(c.from) {
		c.from = from
	}
}

// Cluster adds the numbers that belong to no locality, except the drops by category.
func (a Adding) Cluster(st *endpointv3.ClusterStats) (refused int) {
	c := a.cluster()
	if c == nil {
		return 1
	}
	c.dropped = plus(c.dropped, st.GetTotalDroppedRequests())
	return 0
}

// Drops adds drops of some categories.
func (a Adding) Drops(drops []*endpointv3.ClusterStats_DroppedRequests) (refused int) {
	c := a.cluster()
	if c == nil {
		return 0 // the call of Cluster was refused
	}
	for _, d := range drops {
		at := c.drops[d.GetCategory()]
		if at == nil {
			charge, ok := a.reporter.account.charge(dropBytes, len(d.GetCategory()))
			if !ok {
				refused++
				continue
			}
			at = &drop{charge: charge}
			if c.drops == nil {
				c.drops = map[string]*drop{}
			}
			c.drops[d.GetCategory()] = at
		}
		at.n = plus(at.n, d.GetDroppedCount())
	}
	return refused
}

// place identifies a row of the cluster, which is made if it does not exist.
type place struct {
	key  rowKey
	size int // of its texts, in bytes
	// address and metadata are set for an endpoint.
	address  *corev3.Address
	metadata *structpb.Struct
}

func placeOf(st *endpointv3.UpstreamLocalityStats) place {
	at := rowKeyOf(st)
	return place{key: at, size: len(at.region) + len(at.zone) + len(at.subZone)}
}

// endpointPlace returns the place of an endpoint of a locality. ok is false without an address, which identifies it.
func endpointPlace(of *endpointv3.UpstreamLocalityStats, st *endpointv3.UpstreamEndpointStats) (at place, ok bool) {
	address, err := proto.MarshalOptions{Deterministic: true}.Marshal(st.GetAddress())
	if err != nil || len(address) == 0 {
		return place{}, false
	}
	at = place{key: rowKeyOf(of), size: 2*len(address) + proto.Size(st.GetMetadata()), address: st.GetAddress(), metadata: st.GetMetadata()}
	at.key.endpoint = string(address)
	return at, true
}

// row returns a row, nil if there is no room for it.
func (a Adding) row(at place) *row {
	c := a.cluster()
	if c == nil {
		return nil
	}
	to := c.row(at.key, a.reporter.account, at.size)
	if to != nil && to.address == nil {
		to.address, to.metadata = at.address, at.metadata
	}
	return to
}

// Metrics adds metrics of a row.
func (a Adding) Metrics(at place, metrics []*endpointv3.EndpointLoadMetricStats) (refused int) {
	to := a.row(at)
	if to == nil {
		return len(metrics)
	}
	return to.addMetrics(a.reporter.account, metrics)
}

// Locality adds a locality, without its endpoints and named metrics. ok is false if there is no room for it.
func (a Adding) Locality(at place, st *endpointv3.UpstreamLocalityStats) (refused int, ok bool) {
	to, r := a.row(at), a.reporter
	if to == nil {
		return 1, false
	}
	to.counts.add(counts{
		successful: st.GetTotalSuccessfulRequests(), failed: st.GetTotalErrorRequests(), issued: st.GetTotalIssuedRequests(),
		newConnections: st.GetTotalNewConnections(), failedConnections: st.GetTotalFailConnections(),
	})
	refused = r.state(a.sum, to, stateKey{a.key, at.key}, states{st.GetTotalRequestsInProgress(), st.GetTotalActiveConnections()})
	refused += to.addUnnamed(r.account, cpuMetric, st.GetCpuUtilization())
	refused += to.addUnnamed(r.account, memMetric, st.GetMemUtilization())
	refused += to.addUnnamed(r.account, applicationMetric, st.GetApplicationUtilization())
	return refused, true
}

func rowKeyOf(st *endpointv3.UpstreamLocalityStats) rowKey {
	l := st.GetLocality()
	return rowKey{region: l.GetRegion(), zone: l.GetZone(), subZone: l.GetSubZone(), priority: st.GetPriority()}
}

// Endpoint adds an endpoint, without its metrics. ok is false if there is no room for it.
func (a Adding) Endpoint(at place, st *endpointv3.UpstreamEndpointStats) (refused int, ok bool) {
	to, r := a.row(at), a.reporter
	if to == nil {
		return 1, false
	}
	to.counts.add(counts{successful: st.GetTotalSuccessfulRequests(), failed: st.GetTotalErrorRequests(), issued: st.GetTotalIssuedRequests()})
	return r.state(a.sum, to, stateKey{a.key, at.key}, states{inProgress: st.GetTotalRequestsInProgress()}), true
}

// state adds a state of the current report. A part that occurs twice in the report counts twice. It returns 1 if
// there is no room for the state.
func (r *Reporter) state(of *Sum, at *row, key stateKey, add states) (refused int) {
	is, known := r.is[key]
	before := is.states
	if was, had := r.was[key]; had {
		is.charge, known, before = was.charge, true, was.states
		delete(r.was, key)
	}
	add = add.bounded()
	next := states{is.inProgress + add.inProgress, is.connections + add.connections}.bounded()
	if !known && next != (states{}) {
		var ok bool
		if is.charge, ok = r.account.charge(stateBytes, 0); !ok {
			return 1
		}
	}
	of.clusters[key.cluster].change(at, before, next)
	if next == (states{}) {
		is.release()
		delete(r.is, key)
		return 0
	}
	is.states = next
	r.is[key] = is
	return 0
}

// End ends a report: states that it has not mentioned are removed. most bounds how many of them a call removes. It
// returns whether that was all.
func (s *Sum) End(r *Reporter, most int) (done bool) {
	for key, was := range r.was {
		if most--; most < 0 {
			return false
		}
		c := s.clusters[key.cluster] // it has a state, so it exists
		c.change(c.rows[key.row], was.states, states{})
		was.release()
		delete(r.was, key)
	}
	return true
}

// change changes the state of one client in a row.
func (c *cluster) change(at *row, before, next states) {
	was := at.states != (states{})
	at.states.inProgress += next.inProgress - before.inProgress
	at.states.connections += next.connections - before.connections
	switch is := at.states != (states{}); {
	case is && !was:
		c.busy++
	case was && !is:
		c.busy--
	}
}

// cluster returns a cluster, which it makes if it does not exist; nil if there is no room for it.
func (s *Sum) cluster(key clusterKey, a *account) *cluster {
	c := s.clusters[key]
	if c != nil {
		return c
	}
	charge, ok := a.charge(clusterBytes, len(key.name)+len(key.service))
	if !ok {
		return nil
	}
	c = &cluster{charge: charge, rows: map[rowKey]*row{}}
	if s.clusters == nil {
		s.clusters = map[clusterKey]*cluster{}
	}
	s.clusters[key] = c
	s.most = max(s.most, len(s.clusters))
	return c
}

// row returns a row, which it makes if it does not exist; nil if there is no room for it.
func (c *cluster) row(key rowKey, a *account, size int) *row {
	if at := c.rows[key]; at != nil {
		return at
	}
	charge, ok := a.charge(rowBytes, size)
	if !ok {
		return nil
	}
	at := &row{charge: charge}
	c.rows[key] = at
	return at
}

func (at *row) addMetrics(a *account, metrics []*endpointv3.EndpointLoadMetricStats) (refused int) {
	for _, m := range metrics {
		if !at.addMetric(a, metricKey{name: m.GetMetricName()}, m.GetNumRequestsFinishedWithMetric(), m.GetTotalMetricValue()) {
			refused++
		}
	}
	return refused
}

func (at *row) addUnnamed(a *account, kind metricKind, m *endpointv3.UnnamedEndpointLoadMetricStats) (refused int) {
	if m != nil && !at.addMetric(a, metricKey{kind: kind}, m.GetNumRequestsFinishedWithMetric(), m.GetTotalMetricValue()) {
		return 1
	}
	return 0
}

// addMetric adds to a metric. It refuses a total that is not a finite number: the sum over all clients would not be
// finite, either.
func (at *row) addMetric(a *account, key metricKey, requests uint64, total float64) bool {
	m := at.metrics[key]
	if m == nil {
		m = &metric{}
	}
	sum := m.total + total
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return false
	}
	if at.metrics[key] == nil {
		charge, ok := a.charge(metricBytes, len(key.name))
		if !ok {
			return false
		}
		m.charge = charge
		if at.metrics == nil {
			at.metrics = map[metricKey]*metric{}
		}
		at.metrics[key] = m
	}
	m.requests, m.total = plus(m.requests, requests), sum
	return true
}
