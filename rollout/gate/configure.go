package gate

import (
	"cmp"

	"github.com/xds-relay/xds-relay/rollout"
)

// Settings that change while rollouts go on.

// Configure has all rollouts use the newest settings. One that goes on goes on by these, from where it is.
func (c *Controller) Configure() {
	for _, g := range c.selected(Which{AnyPartition: true}) {
		o := c.of(g.scope)
		if o == nil || o == g.opts.Load() {
			continue
		}
		c.mu.Lock()
		frozen := o.Frozen || c.startsFrozen(g.scope)
		c.mu.Unlock()
		g.configure(o, frozen)
		g.inbox.Wake()
	}
}

// configure uses other settings. frozen holds if these say something else of that than those before: what
// an operator did last stays otherwise.
func (g *gate) configure(o *Options, frozen bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.opts.Swap(o)
	g.machine.Configure(o.Options)
	switch {
	case o.Frozen == before.Frozen:
	case frozen:
		g.machine.Freeze(g.now())
	default:
		g.thaw()
	}
	if o.Grow != before.Grow {
		g.regrow()
	}
	if o.Cohort != before.Cohort {
		g.inbox.Put(event{kind: recohort})
	}
}

// regrow decides anew which of what is pending a person has to approve. What has not to wait any more joins
// the rollout in its first step, and the next one later. What has to wait ends it. The caller holds mu.
func (g *gate) regrow() {
	var items []item
	anew := false
	for i, c := range g.pending.changes {
		if c.refusal != nil {
			continue
		}
		has, _ := g.acceptedItem(i)
		waits := g.grown(has, c.Resource)
		switch {
		case (waits == "") == (c.waits == ""):
			continue
		case waits == "" && g.machine.Began():
			if _, newer := g.later.changes[i]; !newer {
				g.later.put(i, c.Change)
			}
			continue
		case waits != "":
			anew = anew || g.machine.Phase() == rollout.Rolling
		}
		g.pending.update(i, func(c *change) { c.waits = waits })
		items = append(items, i)
	}
	if anew {
		items = append(items, g.takeLater()...)
	}
	g.renew(append(items, g.changed(anew)...))
}

// regroup has the clients be of the cohorts that the newest settings give them. Only the goroutine of the
// gate calls it, without mu: expressions take a while.
func (g *gate) regroup() {
	g.mu.Lock()
	clients := map[*slot]Client{}
	for _, s := range g.slots {
		for m := range s.streams {
			clients[s] = m.client
		}
	}
	g.mu.Unlock()
	cohorts := make(map[*slot]string, len(clients))
	for s, c := range clients {
		if cohorts[s] = c.Cohort; c.CohortNow != nil {
			cohorts[s] = c.CohortNow()
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range cohorts {
		g.cohorts.leave(s.cohort)
	}
	for s, cohort := range cohorts {
		c := clients[s]
		s.cohort = g.cohorts.join(cohort, cmp.Or(c.Who, c.Node))
		g.machine.Regroup(g.now(), s.id, s.cohort)
	}
	g.inbox.Wake()
}
