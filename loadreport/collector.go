package loadreport

import (
	"slices"
	"sync"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// Collector sums the reports on the clusters of one scope. Its exported methods are for the stream to the control
// plane, which calls them one at a time.
type Collector struct {
	hub      *Hub
	scope    cache.Scope
	upstream Upstream // set before the collector is shared

	mu      sync.Mutex // comes after Client.mu and Hub.mu
	sum     Sum
	link    link
	ask     *Ask // nil before the first answer; kept when the stream is lost
	members map[*Client]*Reporter
	left    time.Time // when the last member left
}

// link is the state of the stream to the control plane.
type link uint8

const (
	// connecting: an answer may come soon.
	connecting link = iota
	// failed: the control plane could not be reached, or the stream has ended.
	failed
	answered
	// refused: the control plane takes no load reports, or the configuration forbids them.
	refused
)

// Scope returns the scope of the clusters.
func (c *Collector) Scope() cache.Scope { return c.scope }

// Asked takes a response of the control plane, and returns the time between two reports.
func (c *Collector) Asked(r *lrsv3.LoadStatsResponse) time.Duration {
	ask := NewAsk(r, c.hub.options.Canonical)
	c.become(answered, func() { c.ask = ask })
	c.notify()
	return ask.Interval
}

// Failed notes that the stream could not be opened, or has ended. The last Ask stays: clients continue to report, and
// the next stream sends their reports.
func (c *Collector) Failed() {
	if before := c.become(failed, func() {}); before == connecting {
		c.notify() // clients wait for it no longer
	}
}

// Refused notes that the control plane takes no load reports, or may not get any. Clients are not asked for reports
// for it any more, and their earlier reports are dropped.
func (c *Collector) Refused() {
	forget := func() {
		c.ask = nil
		c.sum.forget(c.turns())
	}
	if before := c.become(refused, forget); before != refused {
		c.notify()
	}
}

func (c *Collector) become(next link, with func()) (before link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.link = c.link, next
	with()
	return before
}

// notify makes all clients check what they should report.
func (c *Collector) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for client := range c.members {
		client.wake()
	}
}

// asks returns the control plane's Ask, nil if it is not known.
func (c *Collector) asks() (*Ask, link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ask, c.link
}

// Take returns the next reports to send, as the parts of messages, and the time at which they were taken. most bounds
// the bytes of a message. ok is false if the control plane requests nothing.
func (c *Collector) Take(most int) (messages [][]*endpointv3.ClusterStats, at time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at = c.hub.now()
	if c.ask == nil || c.ask.asksNothing() {
		c.sum.forget(c.turns())
		return nil, at, false
	}
	return c.sum.take(at, c.ask, most, c.turns()), at, true
}

// turns returns the turns of mu, with which its holder lets others have it from time to time. The caller holds it.
func (c *Collector) turns() *turns { return &turns{lock: &c.mu} }

// Restore puts back what Take returned at that time and could not be sent.
func (c *Collector) Restore(messages [][]*endpointv3.ClusterStats, at time.Time) {
	nobody := &Reporter{account: c.hub.free, is: States{}}
	for _, message := range messages {
		for _, st := range message {
			c.restore(nobody, st, at)
		}
	}
}

// restore puts back a cluster. nobody is a Reporter without states.
func (c *Collector) restore(nobody *Reporter, st *endpointv3.ClusterStats, at time.Time) {
	st = proto.CloneOf(st)
	for _, l := range st.GetUpstreamLocalityStats() {
		l.TotalRequestsInProgress, l.TotalActiveConnections = 0, 0 // the sum still has these
		for _, e := range l.GetUpstreamEndpointStats() {
			e.TotalRequestsInProgress = 0
		}
	}
	period := st.GetLoadReportInterval().AsDuration()
	add := c.sum.Add(at, nobody, c.hub.options.Canonical(st.GetClusterName()), st, period)
	c.addParts(st, add)
	c.mu.Lock()
	defer c.mu.Unlock()
	if of, from := c.sum.clusters[add.key], at.Add(-period); of != nil && from.Before(of.from) {
		of.from = from
	}
}

// Over reports whether the stream is not needed any more: there are no clients, and nothing is left to send. Then the
// collector has ended.
func (c *Collector) Over() bool {
	release, over := c.over()
	release()
	return over
}

// Alone reports whether no client reports any more.
func (c *Collector) Alone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.members) == 0
}

// over is like Over. The caller calls release without holding locks.
func (c *Collector) over() (release func(), over bool) {
	h := c.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.members) > 0 {
		return func() {}, false
	}
	if wanted := c.ask != nil && !c.sum.empty(); wanted && !h.closed {
		if h.orphans <= mostOrphans && h.now().Sub(c.left) < mostOrphaned {
			return func() {}, false
		}
		h.discard(DiscardedAbandoned, len(c.sum.clusters))
	}
	release = c.sum.forgetAll()
	if h.collectors[c.scope] == c {
		delete(h.collectors, c.scope)
		h.orphans--
	}
	return release, true
}

// mostLocked is how many parts of a report or a sum are processed before others may have the lock.
const mostLocked = 64

// mostCovered bounds the period that a report claims to cover.
const mostCovered = 24 * time.Hour

// add adds a cluster of a report. It returns how many of its parts were refused.
func (c *Collector) add(r *Reporter, name string, st *endpointv3.ClusterStats) (refusedParts int) {
	covers := min(max(st.GetLoadReportInterval().AsDuration(), 0), mostCovered)
	return c.addParts(st, c.sum.Add(c.hub.now(), r, name, st, covers))
}

// addParts adds a cluster part by part, because clients choose the number of parts. It returns how many were refused.
func (c *Collector) addParts(st *endpointv3.ClusterStats, add Adding) (refusedParts int) {
	part := func(f func() (refused int)) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.link != refused {
			refusedParts += f()
		}
	}
	metrics := func(at place, all []*endpointv3.EndpointLoadMetricStats) {
		for some := range slices.Chunk(all, mostLocked) {
			part(func() int { return add.Metrics(at, some) })
		}
	}
	part(func() int { return add.Cluster(st) })
	for some := range slices.Chunk(st.GetDroppedRequests(), mostLocked) {
		part(func() int { return add.Drops(some) })
	}
	for _, l := range st.GetUpstreamLocalityStats() {
		at, ok := placeOf(l), false
		part(func() (n int) { n, ok = add.Locality(at, l); return n })
		if ok {
			metrics(at, l.GetLoadMetricStats())
		}
		for _, e := range l.GetUpstreamEndpointStats() {
			at, ok := endpointPlace(l, e)
			if !ok {
				refusedParts++
				continue
			}
			part(func() (n int) { n, ok = add.Endpoint(at, e); return n })
			if ok {
				metrics(at, e.GetLoadMetricStats())
			}
		}
	}
	return refusedParts
}

// end ends a report.
func (c *Collector) end(r *Reporter) {
	for done := false; !done; {
		c.mu.Lock()
		done = c.sum.End(r, mostLocked)
		c.mu.Unlock()
	}
}

// leave ends the reports of a client. Its counts stay; none of its requests are in progress any more.
func (c *Collector) leave(client *Client, r *Reporter) {
	r.Begin()
	c.end(r)
	h := c.hub
	h.mu.Lock()
	c.mu.Lock()
	delete(c.members, client)
	last := len(c.members) == 0
	c.left = h.now()
	c.mu.Unlock()
	if last {
		h.orphans++
	}
	h.mu.Unlock()
	if last {
		c.upstream.Wake() // it may be over
	}
}
