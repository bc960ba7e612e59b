package loadreport

import (
	"sync"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// Collector sums what clients report of the clusters of one scope. Its exported methods are for the
// stream to the control plane, which calls them one at a time.
type Collector struct {
	hub      *Hub
	scope    cache.Scope
	upstream Upstream // set before others know the collector

	mu      sync.Mutex // comes after Client.mu and Hub.mu
	sum     Sum
	link    link
	ask     *Ask // nil before the first answer; it stays when the stream is lost
	members map[*Client]*Reporter
}

// link is what is known of the stream to the control plane.
type link uint8

const (
	// connecting: there may be an answer soon.
	connecting link = iota
	// failed: the control plane could not be reached, or the stream has ended.
	failed
	answered
	// refused: the control plane takes no load reports, or the configuration says so.
	refused
)

// Scope returns the scope of the clusters.
func (c *Collector) Scope() cache.Scope { return c.scope }

// Asked takes what the control plane asks for, and returns the time between two reports.
func (c *Collector) Asked(r *lrsv3.LoadStatsResponse) time.Duration {
	ask := NewAsk(r, c.hub.options.Canonical)
	c.become(answered, func() { c.ask = ask })
	c.notify()
	return ask.Interval
}

// Failed notes that the stream could not be opened, or has ended. What was asked for stays so: clients
// go on reporting, and the next stream sends what they have reported.
func (c *Collector) Failed() {
	if before := c.become(failed, func() {}); before == connecting {
		c.notify() // nobody waits for it any more
	}
}

// Refused notes that the control plane takes no load reports, or may not get any. Clients are not asked
// for any, and what they have reported is forgotten.
func (c *Collector) Refused() {
	forget := func() {
		c.ask = nil
		c.sum.forget()
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

// notify has all clients look at what they are asked for.
func (c *Collector) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for client := range c.members {
		client.wake()
	}
}

// asks returns what the control plane asks for, nil if that is not known.
func (c *Collector) asks() (*Ask, link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ask, c.link
}

// Take returns what is to be sent, as the parts of messages of no more than most bytes, and when it was
// taken. It is not ok if the control plane asks for nothing.
func (c *Collector) Take(most int) (messages [][]*endpointv3.ClusterStats, at time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at = c.hub.now()
	if c.ask == nil || c.ask.asksNothing() {
		c.sum.forget()
		return nil, at, false
	}
	t := c.sum.take(at, c.ask, most)
	for t.next() {
		c.mu.Unlock() // clients choose how much there is
		c.mu.Lock()
	}
	return t.messages(), at, true
}

// Restore puts back what Take returned at that time and what could not be sent.
func (c *Collector) Restore(messages [][]*endpointv3.ClusterStats, at time.Time) {
	nobody := &Reporter{account: c.hub.free, is: States{}}
	restore := func(st *endpointv3.ClusterStats) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sum.Restore(st, at, c.hub.options.Canonical, nobody)
	}
	for _, message := range messages {
		for _, st := range message {
			restore(st)
		}
	}
}

// Over reports whether nobody needs the stream any more: no client is there, and nothing is to be sent.
// Then the collector has ended.
func (c *Collector) Over() bool {
	h := c.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.members) > 0 {
		return false
	}
	if wanted := c.ask != nil && !c.sum.empty(); wanted && !h.closed {
		if h.orphans <= mostOrphans {
			return false
		}
		h.discard(DiscardedAbandoned, len(c.sum.clusters))
	}
	c.sum.forget()
	if h.collectors[c.scope] == c {
		delete(h.collectors, c.scope)
		h.orphans--
	}
	return true
}

// mostLocked is how many localities, endpoints or states of a report are added while others wait.
const mostLocked = 64

// mostCovered bounds the period that a report says it is of.
const mostCovered = 24 * time.Hour

// add adds a cluster of a report. It returns how many parts of it were refused.
func (c *Collector) add(r *Reporter, name string, st *endpointv3.ClusterStats) (refusedParts int) {
	covers := min(max(st.GetLoadReportInterval().AsDuration(), 0), mostCovered)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == refused {
		return 0
	}
	left := mostLocked
	pause := func() {
		if left--; left == 0 {
			left = mostLocked
			c.mu.Unlock()
			c.mu.Lock()
		}
	}
	add := c.sum.Add(c.hub.now(), r, name, st, covers)
	refusedParts += add.Cluster(st)
	for _, l := range st.GetUpstreamLocalityStats() {
		refusedParts += add.Locality(l)
		pause()
		for _, e := range l.GetUpstreamEndpointStats() {
			refusedParts += add.Endpoint(l, e)
			pause()
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

// leave ends the reports of a client. What it has counted stays; nothing is in progress any more.
func (c *Collector) leave(client *Client, r *Reporter) {
	r.Begin()
	c.end(r)
	h := c.hub
	h.mu.Lock()
	c.mu.Lock()
	delete(c.members, client)
	last := len(c.members) == 0
	c.mu.Unlock()
	if last {
		h.orphans++
	}
	h.mu.Unlock()
	if last {
		c.upstream.Wake() // it may be over
	}
}
