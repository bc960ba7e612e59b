package gate

import (
	"github.com/xds-relay/xds-relay/cache"
)

// This file holds changes for the next rollout. The first clients did not try a change that arrives after the first
// step of a rollout. So such a change does not join the rollout: the relay keeps it until the rollout is over. If it
// replaces a resource that is being rolled out, the control plane no longer wants that resource, and the rollout
// ends. After a bounded time that stops, so that a control plane that changes resources all the time gets its changes
// through.

// later has the newest change of each item that waits for the next rollout.
type later struct {
	changes map[item]cache.Change
	types   map[string]int // the number of changes by type URL
}

func newLater() later { return later{map[item]cache.Change{}, map[string]int{}} }

func (l *later) put(i item, c cache.Change) {
	if _, there := l.changes[i]; !there {
		l.types[i.typeURL]++
	}
	l.changes[i] = c
}

func (l *later) drop(i item) {
	if _, there := l.changes[i]; !there {
		return
	}
	delete(l.changes, i)
	if l.types[i.typeURL]--; l.types[i.typeURL] == 0 {
		delete(l.types, i.typeURL)
	}
}

// forget removes the changes of a topic.
func (l *later) forget(k cache.Key) {
	if !k.IsSet() {
		l.drop(item{typeURL: k.TypeURL, name: k.Name})
		return
	}
	if l.types[k.TypeURL] == 0 {
		return
	}
	for i := range l.changes {
		if i.typeURL == k.TypeURL && i.set == k.Name {
			l.drop(i)
		}
	}
}

// joins handles a change of an item after the first step of a rollout. It reports whether the change becomes pending
// now: because it waits for a person, repeats a pending change, or ends the rollout.
func (s *splitting) joins(before *change, c, has *cache.Resource) bool {
	switch {
	case before != nil && (before.Resource == nil && c == nil || same(before.Resource, c)):
		return true // the change is being rolled out
	case before == nil || before.waits != "":
		// It waits for a person anyway. But removals that clients have got already must not wait with it.
		return s.grown(has, c) != "" && !s.pending.showsRemovals(s.in.TypeURL)
	case s.machine.MayRestart(s.now()):
		s.restarts = true
		return true
	}
	return false
}

// takeLater makes the waiting changes pending, and returns the items that may differ in the new topics. The caller
// holds mu, and ends the rollout.
func (g *gate) takeLater() (items []item) {
	if len(g.later.changes) == 0 {
		return nil
	}
	changes := g.later.changes
	g.later = newLater()
	for i, c := range changes {
		if entry, set := g.cache.Find(i.topic(g.scope)); entry == nil && set == nil {
			continue // its topic has ended
		}
		has, _ := g.acceptedItem(i)
		items = append(items, i)
		if c.Resource == nil && has == nil || same(has, c.Resource) {
			g.pending.drop(i)
			continue
		}
		g.putPending(i, has, &c)
	}
	return append(items, g.pending.takeReleased()...)
}

// acceptedItem returns the accepted resource of an item.
func (g *gate) acceptedItem(i item) (r *cache.Resource, known bool) {
	entry, set := g.cache.Find(i.topic(g.scope))
	if i.set == "" {
		return acceptedOf(entry)
	}
	if set == nil {
		return nil, false
	}
	status, _ := set.Status()
	return set.Member(i.name), status == cache.Present
}

// renew gives the new topics the current state of items. The caller holds mu.
func (g *gate) renew(items []item) {
	if len(g.topics) == 0 || len(items) == 0 {
		return
	}
	updates := map[string]*cache.Update{}
	for _, i := range items {
		k := i.topic(g.scope)
		entry, _ := g.cache.Find(k)
		if i.set == "" && entry == nil {
			continue
		}
		u := updates[i.typeURL]
		if u == nil {
			u = &cache.Update{Scope: g.scope, TypeURL: i.typeURL}
			u.Scope.New = true
			updates[i.typeURL] = u
		}
		if i.set == "" {
			if c, ok := g.newEntry(k, entry); ok {
				u.Changes = append(u.Changes, c)
			}
			continue
		}
		change := cache.Change{Name: i.name}
		if c := g.pending.changes[i]; c != nil && g.pending.shown(i.typeURL, c) {
			change.Resource = c.Resource
		} else {
			change.Resource, _ = g.acceptedItem(i)
		}
		change.Gone = change.Resource == nil
		u.Sets = append(u.Sets, cache.SetUpdate{Name: i.set, Changes: []cache.Change{change}})
	}
	inOrder := make([]cache.Update, 0, len(updates))
	for _, u := range updates {
		inOrder = append(inOrder, *u)
	}
	cache.InOrder(inOrder)
	g.cache.Apply(inOrder...)
}

// goOn makes the waiting changes pending, unless a rollout is past its first step. The caller holds mu.
func (g *gate) goOn() {
	if g.machine.Began() {
		return
	}
	items := g.takeLater()
	g.renew(append(items, g.changed(false)...))
}

// endForLater ends the current rollout if changes wait for its end, and makes them pending. The caller holds mu.
func (g *gate) endForLater() {
	if items := g.takeLater(); len(items) > 0 {
		g.renew(append(items, g.changed(true)...))
	}
}
