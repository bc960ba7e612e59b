package loadreport

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// SupportsAll is the client feature of clients that can be asked for all clusters.
const SupportsAll = "envoy.lrs.supports_send_all_clusters"

// Names maps the names of one client's clusters to scopes. One goroutine at a time uses it.
type Names interface {
	// Scopes returns the scopes to which the client may report, as far as they are known before it names clusters.
	Scopes() []cache.Scope
	// Cluster returns the scope of a cluster, and its canonical name. The error is the reason why the client may not
	// report it; ErrOff if its authority takes no load reports.
	Cluster(name string) (cache.Scope, string, error)
	// Close is called once.
	Close()
}

// ErrOff is the error for a cluster whose authority takes no load reports.
var ErrOff = errors.New("no load reports go to the authority")

// ClientOptions describe a client.
type ClientOptions struct {
	Node *corev3.Node
	// Names returns the Names of the client in the newest configuration.
	Names func() Names
	// Account is equal for clients of one identity.
	Account any
	// Enter is called before the client reports to a scope that it can make up, and returns an error if the client
	// has too many. Leave is called when it stops reporting there. Both may be nil.
	Enter func(cache.Scope) error
	Leave func(cache.Scope)
}

// Client is the stream of one client. Its methods may be called concurrently.
type Client struct {
	hub     *Hub
	options ClientOptions
	account *account
	opened  time.Time
	// changed holds a value if Response may return something new.
	changed chan struct{}

	mu     sync.Mutex
	names  Names
	fixed  []cache.Scope // Names.Scopes
	joined map[cache.Scope]*membership
	// known has the clusters that the client has reported. The value is nil for those that it may not report.
	known      map[string]*target
	knownBytes int
	last       *lrsv3.LoadStatsResponse // the last response; nil before the first
	ended      bool
}

// membership is the client's part in a collector.
type membership struct {
	collector *Collector
	reporter  *Reporter
	entered   bool
}

// target is the destination of a cluster's reports, with the canonical name. Without a membership, the reports go
// nowhere.
type target struct {
	*membership
	name string
}

const (
	// patience is how long the first response to a client waits for further control planes after some have answered:
	// some clients never read a second response.
	patience = time.Second
	// mostKnown and mostKnownBytes bound Client.known, and the names in it.
	mostKnown      = 1 << 12
	mostKnownBytes = 1 << 18
)

// readsOnce are the user agents of clients that read only the first response.
var readsOnce = []string{"gRPC Go"}

func newClient(h *Hub, o ClientOptions) *Client {
	c := &Client{
		hub: h, options: o, account: h.budget.join(o.Account), opened: h.now(),
		changed: make(chan struct{}, 1), joined: map[cache.Scope]*membership{},
	}
	return c
}

// rename makes the client use the newest configuration, in which it may report to other scopes.
func (c *Client) rename() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	before, was := c.names, c.fixed
	c.names, c.known, c.knownBytes = c.options.Names(), map[string]*target{}, 0
	c.fixed = c.names.Scopes()
	for _, scope := range was {
		if m := c.joined[scope]; m != nil && !slices.Contains(c.fixed, scope) {
			c.leave(scope, m) // until the client reports a cluster of it
		}
	}
	for _, scope := range c.fixed {
		if _, err := c.join(scope); err != nil {
			if log, ok := c.line(); ok {
				log.Warn("a client's load reports are discarded", "authority", scope.Authority, "reason", loglines.Clip(err.Error()))
			}
		}
	}
	if before != nil {
		before.Close()
	}
	c.wake()
}

// join returns the client's part in the collector of a scope. The error is the reason why it may not have one. The
// caller holds mu.
func (c *Client) join(scope cache.Scope) (*membership, error) {
	m := c.joined[scope]
	if m != nil {
		return m, nil
	}
	m = &membership{reporter: &Reporter{is: States{}, account: c.account}}
	if madeUp := scope.OldStyle || !slices.Contains(c.fixed, scope); madeUp && c.options.Enter != nil {
		if err := c.options.Enter(scope); err != nil {
			return nil, err
		}
		m.entered = true
	}
	if m.collector = c.hub.collector(scope, c, c.names, m.reporter); m.collector == nil {
		c.exit(scope, m)
		return nil, errClosed
	}
	c.joined[scope] = m
	return m, nil
}

var errClosed = errors.New("the relay is shutting down")

// leave ends the client's part in a collector. The caller holds mu.
func (c *Client) leave(scope cache.Scope, m *membership) {
	delete(c.joined, scope)
	m.collector.leave(c, m.reporter)
	c.exit(scope, m)
}

func (c *Client) exit(scope cache.Scope, m *membership) {
	if m.entered && c.options.Leave != nil {
		c.options.Leave(scope)
	}
}

// Report adds a report.
func (c *Client) Report(r *lrsv3.LoadStatsRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.hub.reports.Add(1)
	for _, m := range c.joined {
		m.reporter.Begin()
	}
	for _, st := range r.GetClusterStats() {
		to := c.target(st.GetClusterName())
		if to == nil {
			c.hub.discard(DiscardedName, 1)
			continue
		}
		if to.membership == nil {
			continue // no control plane takes it
		}
		if refused := to.collector.add(to.reporter, to.name, st); refused > 0 {
			c.hub.discard(DiscardedLimit, refused)
			if log, ok := c.line(); ok {
				log.Warn("parts of a client's load report are discarded: they have no meaning, or there is no room for them",
					"cluster", loglines.Clip(st.GetClusterName()), "parts", refused)
			}
		}
	}
	for _, m := range c.joined {
		m.collector.end(m.reporter)
	}
}

// target returns the destination of a cluster's reports, nil if the client may not report it. The caller holds mu.
func (c *Client) target(name string) *target {
	to, known := c.known[name]
	if known {
		return to
	}
	scope, canonical, err := c.names.Cluster(name)
	if err == nil {
		var m *membership
		if m, err = c.join(scope); err == nil {
			to = &target{m, canonical}
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, ErrOff):
		to = &target{}
	default:
		if log, ok := c.line(); ok {
			log.Warn("a client's load reports of a cluster are discarded", "cluster", loglines.Clip(name), "reason", loglines.Clip(err.Error()))
		}
	}
	if c.knownBytes += len(name); len(c.known) >= mostKnown || c.knownBytes > mostKnownBytes {
		c.known, c.knownBytes = map[string]*target{}, len(name)
	}
	c.known[name] = to
	return to
}

// line returns the logger for a line about the client, false if there were too many lines.
func (c *Client) line() (*slog.Logger, bool) {
	log, ok := c.hub.lines.Next(c.hub.options.Log)
	if !ok {
		return nil, false
	}
	return log.With("client", c.options.Node.GetId()), true
}

// Changed receives a value after the result of Response may have changed.
func (c *Client) Changed() <-chan struct{} { return c.changed }

func (c *Client) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Response returns the next response to the client, nil if it has the newest one. Before the first response, again is
// the time after which to call again; 0 means not before Changed.
func (c *Client) Response() (r *lrsv3.LoadStatsResponse, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, 0
	}
	var asks []scopedAsk
	connects := false
	for scope, m := range c.joined {
		ask, link := m.collector.asks()
		if ask != nil {
			asks = append(asks, scopedAsk{ask, scope})
		}
		connects = connects || ask == nil && link == connecting
	}
	if len(asks) == 0 {
		return nil, 0
	}
	if c.last == nil && connects {
		if left := patience - c.hub.now().Sub(c.opened); left > 0 {
			return nil, left
		}
	}
	all := slices.Contains(c.options.Node.GetClientFeatures(), SupportsAll)
	r = union(asks, all, c.may)
	if c.last == nil && all && c.missesSome() && slices.Contains(readsOnce, c.options.Node.GetUserAgentName()) {
		r.SendAllClusters, r.Clusters = true, nil
	}
	if c.last != nil && proto.Equal(r, c.last) {
		return nil, 0
	}
	c.last = c.hub.responses.share(r)
	return c.last, 0
}

// missesSome reports whether a control plane that has not answered yet may request reports later. The caller holds
// mu.
func (c *Client) missesSome() bool {
	for _, m := range c.joined {
		if ask, link := m.collector.asks(); ask == nil && link != refused {
			return true
		}
	}
	return false
}

// may reports whether the control plane of a scope may request a cluster from the client: the client may know of it,
// and would report it there. The caller holds mu.
func (c *Client) may(scope cache.Scope, cluster string) bool {
	of, _, err := c.names.Cluster(cluster)
	return err == nil && of == scope
}

// Close ends the client. Its earlier reports still count.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	for scope, m := range c.joined {
		c.leave(scope, m)
	}
	c.names.Close()
	c.hub.forget(c)
	c.hub.budget.leave(c.account)
}
