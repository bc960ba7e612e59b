package gate

import (
	"cmp"
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/rollout"
)

// Settings that change while rollouts go on.

// Configure has all rollouts use the newest settings. One that goes on goes on by these, from where it is.
// Whether a scope has rollouts, and of which types, changes with its source: see Closed.
func (c *Controller) Configure() {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.gates))
	c.mu.Unlock()
	for _, g := range all {
		c.mu.Lock()
		o := c.of(g.scope)
		if g.ended.Store(false); o == nil {
			c.endIfGone(g)
		}
		frozen := o != nil && o.Frozen || c.startsFrozen(g.scope)
		c.mu.Unlock()
		if o == nil || o == g.opts.Load() {
			continue
		}
		g.configure(o, frozen)
		g.inbox.Wake()
	}
}

// sourceClosed accepts what is pending and not rolled out by the newest settings, which are nil if nothing is.
func (g *gate) sourceClosed(o *Options) {
	g.mu.Lock()
	var after []func()
	if o != nil {
		g.retype(o)
	} else {
		g.endForLater()
		if g.all = g.machine.Approve(g.now()); !g.all {
			g.accept(true)
		}
		after = g.perform(nil)
	}
	g.mu.Unlock()
	for _, f := range after {
		f()
	}
}

// retype has other types be rolled out. What is pending of those that are not any more is accepted. If a rollout
// goes on, it begins anew with the rest: all clients go back, so that nobody watches new topics of types that
// have none. The caller holds mu. No source gives anything of these types meanwhile.
func (g *gate) retype(o *Options) {
	if g.typed.Load().Types == o.Types {
		return
	}
	g.typed.Store(o)
	items := g.takeLater()
	if g.machine.Phase() == rollout.Rolling {
		g.hideAll()
		g.shown = ""
		g.machine.Changed(g.now(), "", false)
	}
	g.acceptOnly(func(i item, _ *change) bool { return !o.RollsOut(i.typeURL) })
	for typeURL := range g.newest {
		if !o.RollsOut(typeURL) {
			delete(g.newest, typeURL)
			delete(g.accepted, typeURL)
		}
	}
	items = append(items, g.pending.takeReleased()...)
	g.renew(append(items, g.changed(true)...))
	g.inbox.Wake()
}

// wakeAll has all clients look at what they are to do. The caller holds mu.
func (g *gate) wakeAll() {
	for _, s := range g.slots {
		for _, m := range s.streams {
			m.client.Wake()
		}
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
		for _, m := range s.streams {
			clients[s] = m.client
		}
	}
	g.mu.Unlock()
	cohorts := make(map[*slot]string, len(clients))
	for s, c := range clients {
		if cohorts[s] = c.Cohort; c.CohortNow != nil {
			cohorts[s] = c.CohortNow(g.scope)
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
