package failover

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Event reports a change of the connection. It does not block for long. It calls the
// feed only to close it, or with methods that take a note and return.
func (h *Child) Event(e Event) {
	g, c := h.group, h.self
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.closed {
		return
	}
	now := time.Now()
	g.machine.event(now, c.server, e)
	g.act()
	g.reschedule(now)
}

// Apply stores updates if the server is active. While the server is not up, its
// errors are dropped: the group itself reports an error once all servers have failed.
func (h *Child) Apply(updates ...cache.Update) {
	g, c := h.group, h.self
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.active {
		c.outdated = true
		return
	}
	if !g.machine.Up(c.server) {
		updates = withoutErrors(updates)
	}
	if len(updates) > 0 {
		g.sink.Apply(updates...)
		g.trackTTLs(updates, c)
	}
	if before := g.wanted.missing(); g.wanted.recordAnswers(updates) && before {
		now := time.Now()
		g.machine.Missing(now, g.wanted.missing())
		g.act()
		g.reschedule(now)
	}
}

// Seed returns a function that yields the resources with which a feed may resume: see
// upstream.Options.Seed.
func (h *Child) Seed(from Holder) func(cache.Key, func(string, *cache.Resource)) {
	g, c := h.group, h.self
	return func(k cache.Key, yield func(string, *cache.Resource)) {
		g.mu.Lock()
		c.outdated = c.outdated || !c.active
		g.mu.Unlock()
		from.Contents(k, yield)
	}
}

// reschedule wakes the goroutine if the machine waits for a time. The caller holds mu.
func (g *Group) reschedule(now time.Time) {
	if !g.machine.Next(now).IsZero() {
		g.inbox.Wake()
	}
}

// withoutErrors returns the updates without their changes that are only errors.
func withoutErrors(updates []cache.Update) (rest []cache.Update) {
	for _, u := range updates {
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
		if len(u.Changes)+len(u.Sets) > 0 {
			rest = append(rest, u)
		}
	}
	return rest
}
