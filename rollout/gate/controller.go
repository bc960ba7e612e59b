package gate

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/xds-relay/xds-relay/cache"
)

// Controller manages the gates of all scopes. Its methods may be called concurrently.
type Controller struct {
	cache *cache.Cache
	// of returns the settings of a scope's rollouts, nil if it has none.
	of func(cache.Scope) *Options
	// label returns the name under which an authority is configured, for metrics.
	label func(authority string) string
	log   *slog.Logger

	mu     sync.Mutex // comes before the locks of inboxes, and after all others
	gates  map[cache.Scope]*gate
	room   cache.Room // of gates
	frozen []frozen
	// held counts the topics that gates keep from ending.
	held   atomic.Int64
	counts map[string]*Counts // by authority, for authorities configured by name
	ending sync.WaitGroup
}

// topicKey is the key of the topic that an event concerns.
type topicKey = cache.Key

// NewController returns a controller without gates. of returns the settings of an accepted scope's
// rollouts, nil if it has none. label returns the name under which an authority is configured.
func NewController(c *cache.Cache, of func(cache.Scope) *Options, label func(authority string) string, log *slog.Logger) *Controller {
	return &Controller{cache: c, of: of, label: label, log: log, gates: map[cache.Scope]*gate{}, counts: map[string]*Counts{}}
}

// Counts has the numbers of an authority's accepted and refused rollouts.
type Counts struct{ Accepted, Refused atomic.Uint64 }

// countsOf returns the counts of an authority. The caller holds mu.
func (c *Controller) countsOf(authority string) *Counts {
	if c.counts[authority] == nil {
		c.counts[authority] = &Counts{}
	}
	return c.counts[authority]
}

// Stats are the numbers for the rollouts of one configured authority.
type Stats struct {
	Authority         string
	Accepted, Refused uint64
	// Pending is the number of resources that are not accepted. Waiting is the number of those that wait for a
	// person.
	Pending, Waiting int
	// Clients is the number of clients on the new side.
	Clients int
}

// Count begins to count the rollouts of an authority. authority is the name under which it is configured.
func (c *Controller) Count(authority string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.countsOf(authority)
}

// Stats returns the numbers of all rollouts, by authority.
func (c *Controller) Stats() []Stats {
	c.mu.Lock()
	all := map[string]*Stats{}
	for authority, n := range c.counts {
		all[authority] = &Stats{Authority: authority, Accepted: n.Accepted.Load(), Refused: n.Refused.Load()}
	}
	c.mu.Unlock()
	for _, g := range c.selected(Which{AnyPartition: true}) {
		s := all[c.label(g.scope.Authority)]
		if s == nil {
			continue // it has begun since
		}
		g.mu.Lock()
		s.Pending += len(g.pending.changes)
		s.Waiting += g.pending.nWaits
		s.Clients += g.onNew()
		g.mu.Unlock()
	}
	stats := make([]Stats, 0, len(all))
	for _, authority := range slices.Sorted(maps.Keys(all)) {
		stats = append(stats, *all[authority])
	}
	return stats
}

// Close ends all gates, and waits for their goroutines.
func (c *Controller) Close() {
	c.mu.Lock()
	for _, g := range c.gates {
		close(g.stop)
	}
	c.gates = map[cache.Scope]*gate{}
	c.mu.Unlock()
	c.ending.Wait()
}

// use adds a use of a scope's gate and returns the gate. It returns nil if the scope has no rollout. The caller holds
// mu.
func (c *Controller) use(scope cache.Scope) *gate {
	g := c.gates[scope]
	if g == nil {
		o := c.of(scope)
		if o == nil {
			return nil
		}
		return c.useBy(scope, o)
	}
	g.uses++
	return g
}

// useBy is like use, for a scope whose rollouts have these settings.
func (c *Controller) useBy(scope cache.Scope, of *Options) *gate {
	g := c.gates[scope]
	if g == nil {
		g = newGate(scope, of, c, c.startsFrozen(scope))
		c.ending.Go(func() { <-g.done })
		c.gates[scope] = g
	}
	g.uses++
	return g
}

// release removes a use of a gate. The caller holds mu.
func (c *Controller) release(g *gate) {
	if g.uses--; g.uses == 0 && c.gates[g.scope] == g {
		c.gates = cache.Without(c.gates, &c.room, g.scope)
		close(g.stop)
	}
}

// Opened reports that the source of an accepted scope is being opened, and that the scope has rollouts with these
// settings. Closed undoes it.
func (c *Controller) Opened(scope cache.Scope, of *Options) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if newest := c.of(scope); newest != nil {
		of = newest
	}
	c.useBy(scope, of).sources++
}

// RejectsTo sets the Rejecter for the control plane of a scope. It is nil if there is no control plane.
func (c *Controller) RejectsTo(scope cache.Scope, t Rejecter) {
	c.mu.Lock()
	g := c.gates[scope]
	c.mu.Unlock()
	if g == nil {
		return
	}
	g.inbox.Put(event{kind: rejecter, detail: &detail{rejecter: t}})
}

// Closed reports that the source of a scope was closed. If the next source has no rollouts, or rolls out other types,
// Closed accepts the pending changes that are no longer rolled out before it returns.
func (c *Controller) Closed(scope cache.Scope) {
	c.mu.Lock()
	g, o := c.gates[scope], c.of(scope)
	c.mu.Unlock()
	if g == nil {
		return
	}
	g.sourceClosed(o)
	c.mu.Lock()
	defer c.mu.Unlock()
	g.inbox.Put(event{kind: rejecter, detail: &detail{}})
	g.sources--
	c.endIfGone(g)
	c.release(g)
}

// endIfGone makes the clients of a gate leave, if its scope has no rollouts and no open source. The caller holds mu.
func (c *Controller) endIfGone(g *gate) {
	if g.sources == 0 && c.of(g.scope) == nil {
		g.ended.Store(true)
		g.inbox.Put(event{kind: ended})
	}
}

// Apply passes updates of one scope, whose source was opened with these settings, through the scope's gate, if there is
// one, to below. The caller holds the lock of below.
func (c *Controller) Apply(below Below, of *Options, updates []cache.Update) {
	c.mu.Lock()
	g := c.gates[updates[0].Scope]
	c.mu.Unlock()
	if g == nil {
		below.Accept(updates)
		return
	}
	g.apply(below, of, updates)
}

// Start reports that a topic of the new side has gained a watcher. It does not block.
func (c *Controller) Start(k cache.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.use(k.Scope.Accepted()); g != nil {
		g.inbox.Put(event{kind: started, detail: &detail{topic: k}})
	}
}

// Stop reports that a topic of the new side has lost its watchers. It does not block.
func (c *Controller) Stop(k cache.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.gates[k.Scope.Accepted()]; g != nil {
		g.inbox.Put(event{kind: stopped, detail: &detail{topic: k}})
	}
}

// AcceptedStopped reports that an accepted topic has ended. It does not block.
func (c *Controller) AcceptedStopped(k cache.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.gates[k.Scope]; g != nil {
		g.inbox.Put(event{kind: acceptedStopped, detail: &detail{topic: k}})
	}
}

// Join makes a client's stream a member of a scope's rollouts. The member is nil if the scope has none. showing is
// what Showing returns at that time.
func (c *Controller) Join(scope cache.Scope, client Client) (m *Member, showing uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.use(scope)
	if g == nil {
		return nil, 0
	}
	return g.join(client)
}

// tidyAll returns a function that forgets the slots of all clients that are gone.
func (c *Controller) tidyAll(g *gate) func() {
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for node := range g.clients {
			g.tidy(node)
		}
	}
}

// Leave ends a membership. ended: the stream has ended. Otherwise only its interest in the scope has.
func (m *Member) Leave(ended bool) {
	c := m.gate.controller
	c.mu.Lock()
	defer c.mu.Unlock()
	m.gate.leave(m, ended)
	c.release(m.gate)
}
