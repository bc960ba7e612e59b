package gate

import (
	"cmp"
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/rollout"
)

// This file applies changed settings to running rollouts.

// Configure gives all rollouts the newest settings. A running rollout continues with them from where it is. Whether a
// scope has rollouts, and of which types, changes only with its source: see Closed.
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

// sourceClosed accepts the pending changes that the newest settings do not roll out. The settings are nil if nothing
// is rolled out.
func (g *gate) sourceClosed(o *Options) {
	unlock := g.lock()
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
	unlock()
	for _, f := range after {
		f()
	}
}

// retype changes which types are rolled out, and accepts the pending changes of types that no longer are. A running
// rollout begins again with the remaining changes: all clients go back, so that no client watches new topics of types
// that have none. The caller holds mu. No source sends updates of these types at the same time.
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

// wakeAll wakes all streams of all clients. The caller holds mu.
func (g *gate) wakeAll() {
	for _, s := range g.slots {
		for _, m := range s.streams {
			m.client.Wake()
		}
	}
}

// configure replaces the settings. frozen applies only if the new settings differ from the old ones in Frozen.
// Otherwise the operator's last command stays in effect.
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

// regrow decides again which pending changes a person has to approve. A change that no longer has to wait joins the
// rollout in its first step, and the next rollout after that. A change that now has to wait ends the rollout. The
// caller holds mu.
func (g *gate) regrow() {
	var items []item
	restarts := false
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
			restarts = restarts || g.machine.Phase() == rollout.Rolling
		}
		g.pending.update(i, func(c *change) { c.waits = waits })
		items = append(items, i)
	}
	items = append(items, g.pending.takeReleased()...)
	if restarts {
		items = append(items, g.takeLater()...)
	}
	g.renew(append(items, g.changed(restarts)...))
}

// regroup assigns the clients to cohorts by the newest settings. Only the gate's goroutine calls it, without mu,
// because expressions take a while.
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
