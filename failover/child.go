package failover

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Child is a server of a [Group], as its feed sees it.
type Child struct {
	group *Group
	self  *child
}

// child is a server of a group that is open. Guarded by Group.mu, but for what does
// not change.
type child struct {
	Child
	server int
	feed   Feed
	active bool
	// behind says that something it has said, or was given to go on from, has not
	// come to the sink.
	behind bool
	gone   bool // it was closed
}

// Event notes what has become of the server. It does not block for long, and does
// not call the feed but to Close it or to have it note something.
func (h *Child) Event(e Event) {
	g, c := h.group, h.self
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.gone {
		return
	}
	now := time.Now()
	g.machine.event(now, c.server, e)
	g.act()
	g.rewind(now)
}

// Apply is the feed's sink.
func (h *Child) Apply(u cache.Update) {
	g, c := h.group, h.self
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.active {
		c.behind = true
		return
	}
	if !g.machine.Up(c.server) {
		// That it cannot be reached is for the group to tell, once all are so.
		u = withoutErrors(u)
	}
	if len(u.Changes)+len(u.Sets) > 0 {
		g.sink.Apply(u)
		g.live(&u, c)
	}
	if before := g.wants.missing(); g.wants.answered(u) && before {
		now := time.Now()
		g.machine.Missing(now, g.wants.missing())
		g.act()
		g.rewind(now)
	}
}

// Seed gives a feed what is held, to go on from: see upstream.Options.
func (h *Child) Seed(from Holder) func(cache.Key, func(string, *cache.Resource)) {
	g, c := h.group, h.self
	return func(k cache.Key, yield func(string, *cache.Resource)) {
		g.mu.Lock()
		c.behind = c.behind || !c.active
		g.mu.Unlock()
		from.Held(k, yield)
	}
}

// rewind has the goroutine look when it is to tick. The caller holds mu.
func (g *Group) rewind(now time.Time) {
	if !g.machine.Next(now).IsZero() {
		g.rouse()
	}
}

// withoutErrors leaves out what could not be had.
func withoutErrors(u cache.Update) cache.Update {
	changes, sets := u.Changes, u.Sets
	u.Changes, u.Sets = nil, nil
	for _, c := range changes {
		if c.Err == nil || c.Gone || c.Resource != nil {
			u.Changes = append(u.Changes, c)
		}
	}
	for _, s := range sets {
		if s.Err == nil {
			u.Sets = append(u.Sets, s)
		}
	}
	return u
}
