package gate

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/xds-relay/xds-relay/cache"
)

// Controller has the gates of all scopes. Its methods may be called concurrently.
type Controller struct {
	cache *cache.Cache
	// of returns the settings of a scope's rollouts, nil if it has none.
	of func(cache.Scope) *Options
	// label returns the name under which an authority is configured, for what is counted.
	label func(authority string) string
	log   *slog.Logger

	mu     sync.Mutex // comes before the locks of inboxes, and last otherwise
	gates  map[cache.Scope]*gate
	room   cache.Room // of gates
	frozen []frozen
	// held counts the topics that gates hold.
	held   atomic.Int64
	counts map[string]*Counts // by authority, for those that are configured by name
	ending sync.WaitGroup
}

// topicKey is short for what an event needs.
type topicKey = cache.Key

// NewController returns a controller without gates. of returns the settings of an accepted scope's
// rollouts, nil if it has none. label returns the name under which an authority is configured.
func NewController(c *cache.Cache, of func(cache.Scope) *Options, label func(authority string) string, log *slog.Logger) *Controller {
	return &Controller{cache: c, of: of, label: label, log: log, gates: map[cache.Scope]*gate{}, counts: map[string]*Counts{}}
}

// Counts count the rollouts of an authority that were accepted, and those that were refused.
type Counts struct{ Accepted, Refused atomic.Uint64 }

// countsOf returns the counts of an authority. The caller holds mu.
func (c *Controller) countsOf(authority string) *Counts {
	if c.counts[authority] == nil {
		c.counts[authority] = &Counts{}
	}
	return c.counts[authority]
}

// Stats is what there is of an authority's rollouts, as it is configured.
type Stats struct {
	Authority         string
	Accepted, Refused uint64
	// Pending are resources that are not accepted, and Waiting those of them that wait for a person.
	Pending, Waiting int
	// Clients are on the new side.
	Clients int
}

// Count begins to count the rollouts of an authority, under the name under which it is configured.
func (c *Controller) Count(authority string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.countsOf(authority)
}

// Stats returns the state of all rollouts together, by authority.
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

// Close ends all gates, and waits for them.
func (c *Controller) Close() {
	c.mu.Lock()
	for _, g := range c.gates {
		close(g.stop)
	}
	c.gates = map[cache.Scope]*gate{}
	c.mu.Unlock()
	c.ending.Wait()
}

// use returns the gate of a scope for one more use; nil if the scope has no rollout. The caller
// holds mu.
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

// useBy is use of a scope whose rollouts have some settings.
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

// release ends a use of a gate. The caller holds mu.
func (c *Controller) release(g *gate) {
	if g.uses--; g.uses == 0 && c.gates[g.scope] == g {
		c.gates = cache.Without(c.gates, &c.room, g.scope)
		close(g.stop)
	}
}

// Opened notes that the source of an accepted scope is being opened, which has rollouts by these settings.
// Closed undoes it.
func (c *Controller) Opened(scope cache.Scope, of *Options) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if newest := c.of(scope); newest != nil {
		of = newest
	}
	c.useBy(scope, of).sources++
}

// RejectsTo sets how rejections are sent to the control plane of a scope; nil if there is none.
func (c *Controller) RejectsTo(scope cache.Scope, t Rejecter) {
	c.mu.Lock()
	g := c.gates[scope]
	c.mu.Unlock()
	if g == nil {
		return
	}
	g.inbox.Put(event{kind: rejecter, detail: &detail{rejecter: t}})
}

// Closed notes that the source of a scope was closed. If the next one has no rollouts, or of other types,
// what is not rolled out any more is accepted before Closed returns.
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

// endIfGone has the clients of a gate leave, if its scope has no rollouts and nothing is pending. The caller
// holds mu.
func (c *Controller) endIfGone(g *gate) {
	if g.sources == 0 && c.of(g.scope) == nil {
		g.ended.Store(true)
		g.inbox.Put(event{kind: ended})
	}
}

// Sink returns what a source writes to that has rollouts by these settings: the gates before below.
func (c *Controller) Sink(below Sink, of *Options) Sink { return gated{c, below, of} }

type gated struct {
	*Controller
	below Sink
	of    *Options
}

// Apply implements Sink.
func (s gated) Apply(u cache.Update) {
	s.mu.Lock()
	g := s.gates[u.Scope]
	s.mu.Unlock()
	if g == nil {
		s.below.Apply(u)
		return
	}
	g.apply(s.below, s.of, u)
}

// Start notes that a topic of the new side is wanted. It does not block.
func (c *Controller) Start(k cache.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.use(k.Scope.Accepted()); g != nil {
		g.inbox.Put(event{kind: started, detail: &detail{topic: k}})
	}
}

// Stop notes that a topic of the new side is not wanted any more. It does not block.
func (c *Controller) Stop(k cache.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.gates[k.Scope.Accepted()]; g != nil {
		g.inbox.Put(event{kind: stopped, detail: &detail{topic: k}})
	}
}

// AcceptedStopped notes that an accepted topic has ended. It does not block.
func (c *Controller) AcceptedStopped(k cache.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.gates[k.Scope]; g != nil {
		g.inbox.Put(event{kind: acceptedStopped, detail: &detail{topic: k}})
	}
}

// Join makes a client's stream a member of a scope's rollouts, nil if it has none. showing is what
// Showing returned then.
func (c *Controller) Join(scope cache.Scope, client Client) (m *Member, showing uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.use(scope)
	if g == nil {
		return nil, 0
	}
	return g.join(client)
}

// tidyAll returns what forgets the places of all clients that are gone.
func (c *Controller) tidyAll(g *gate) func() {
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for node := range g.clients {
			g.tidy(node)
		}
	}
}

// Leave ends a membership. ended says that the stream has ended, and not only its interest in the
// scope.
func (m *Member) Leave(ended bool) {
	c := m.gate.controller
	c.mu.Lock()
	defer c.mu.Unlock()
	m.gate.leave(m, ended)
	c.release(m.gate)
}
