package loadreport

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// Hub has the clients that report, and a collector for each scope that they report to. Its methods may be called
// concurrently.
type Hub struct {
	options Options
	now     func() time.Time
	budget  *budget
	// free is the account of reports that are put back.
	free      *account
	reports   atomic.Uint64
	discarded [numDiscards]atomic.Uint64
	lines     loglines.Shared
	responses responses

	mu         sync.Mutex // comes after Client.mu, and before Collector.mu
	collectors map[cache.Scope]*Collector
	clients    map[*Client]struct{}
	orphans    int // collectors without clients
	closed     bool
}

// Options are the dependencies of a Hub.
type Options struct {
	// Open begins the stream of a collector to its control plane. names are the Names of the first client. It must
	// not call the collector, nor block.
	Open func(c *Collector, names Names) Upstream
	// Canonical returns the canonical name of a cluster that a control plane names.
	Canonical func(string) string
	Log       *slog.Logger
}

// Upstream is the stream of a collector to its control plane.
type Upstream interface {
	// Wake makes the stream check whether the collector is over, and whether it is connected to the right server. It
	// does not block.
	Wake()
	// Close sends the remaining reports, if that is possible soon, and ends the stream.
	Close()
}

// mostOrphans bounds the collectors without clients that wait until their control planes take the remaining reports.
const mostOrphans = 1000

// mostOrphaned is how long a collector without clients waits for that.
const mostOrphaned = 5 * time.Minute

// Discard is the reason why a part of a report is discarded.
type Discard uint8

// Reasons for discarding parts of reports.
const (
	// DiscardedName: the client may not report the cluster, or its name is invalid.
	DiscardedName Discard = iota
	// DiscardedLimit: there is no room for the part, or it is meaningless, such as an endpoint without an address or
	// a metric that is not a number.
	DiscardedLimit
	// DiscardedAbandoned: the clients have left, and their control plane has not taken the remaining reports in time, or too
	// many do not.
	DiscardedAbandoned
	numDiscards
)

var discards = [numDiscards]string{DiscardedName: "name", DiscardedLimit: "limit", DiscardedAbandoned: "abandoned"}

// String returns the reason's name in metrics.
func (d Discard) String() string { return discards[d] }

// NewHub makes a hub without clients.
func NewHub(o Options) *Hub {
	h := &Hub{
		options: o, now: time.Now, budget: newBudget(),
		collectors: map[cache.Scope]*Collector{}, clients: map[*Client]struct{}{},
	}
	h.free = &account{of: h.budget, free: true}
	return h
}

// Held returns the memory, in bytes, of what the clients with an account have reported and was not sent yet; and that of
// all clients.
func (h *Hub) Held(account any) (own, all int64) { return h.budget.held(account) }

// Open begins the stream of a client, until its Close.
func (h *Hub) Open(o ClientOptions) *Client {
	c := newClient(h, o)
	h.mu.Lock()
	h.clients[c] = struct{}{}
	h.mu.Unlock()
	c.rename()
	return c
}

func (h *Hub) forget(c *Client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.clients, c)
}

// collector returns the collector of a scope, which a client joins. It is nil if the hub is closed.
func (h *Hub) collector(scope cache.Scope, client *Client, names Names, r *Reporter) *Collector {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	c := h.collectors[scope]
	if c == nil {
		c = &Collector{hub: h, scope: scope, members: map[*Client]*Reporter{}}
		c.upstream = h.options.Open(c, names)
		h.collectors[scope] = c
		h.orphans++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.members) == 0 {
		h.orphans--
	}
	c.members[client] = r
	return c
}

// Reconfigure makes all clients and streams use the newest configuration.
func (h *Hub) Reconfigure() {
	h.mu.Lock()
	clients := make([]*Client, 0, len(h.clients))
	for c := range h.clients {
		clients = append(clients, c)
	}
	upstreams := make([]Upstream, 0, len(h.collectors))
	for _, c := range h.collectors {
		upstreams = append(upstreams, c.upstream)
	}
	h.mu.Unlock()
	for _, c := range clients {
		c.rename()
	}
	for _, u := range upstreams {
		u.Wake()
	}
}

// Close ends the streams to control planes, after sending the remaining reports.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	var closing sync.WaitGroup
	for _, c := range h.collectors {
		closing.Go(c.upstream.Close)
	}
	h.mu.Unlock()
	closing.Wait()
}

// discard counts discarded parts of reports.
func (h *Hub) discard(why Discard, parts int) { h.discarded[why].Add(uint64(parts)) }

// Stats are statistics for operators.
type Stats struct {
	Clients int
	// Reports counts the reports from clients since the start, and Discarded the parts of them that were discarded,
	// by the name of the Discard.
	Reports   uint64
	Discarded map[string]uint64
}

// Stats returns the current statistics.
func (h *Hub) Stats() Stats {
	s := Stats{Reports: h.reports.Load(), Discarded: map[string]uint64{}}
	for d := range numDiscards {
		s.Discarded[d.String()] = h.discarded[d].Load()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Clients = len(h.clients)
	return s
}
