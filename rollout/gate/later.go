package gate

import (
	"github.com/xds-relay/xds-relay/cache"
)

// What waits for the next rollout. What changes after the first step of a rollout was not tried by the
// first clients, so it does not join: the relay keeps it until the rollout is over. If it replaces some
// of what is rolled out, the rollout ends, since the control plane does not want that any more; but not
// for ever, so that a control plane that is never quiet gets through.

// later has the newest change of each item that waits.
type later struct {
	changes map[item]cache.Change
	types   map[string]int // counts them
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

// forget forgets what waits of a topic.
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

// joins decides what becomes of a change of an item while a rollout has begun. It reports whether the
// change becomes pending now: nobody gets it, or the rollout ends for it.
func (s *splitting) joins(before *change, c, has *cache.Resource) bool {
	switch {
	case before != nil && (before.Resource == nil && c == nil || same(before.Resource, c)):
		return true // it is what is rolled out
	case before == nil || before.waits != "":
		return s.grown(has, c) != "" // it waits for a person in any case
	case s.machine.BeginsAnew(s.now()):
		s.anew = true
		return true
	}
	return false
}

// takeLater makes what waits pending, and returns the items that may differ in the new topics. The
// caller holds mu, and has the rollout end.
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

// acceptedItem returns what is accepted of an item.
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

// renew gives the new topics what they are to have of some items. The caller holds mu.
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
		if c := g.pending.changes[i]; c != nil && c.shown() {
			change.Resource = c.Resource
		} else if change.Resource, _ = g.acceptedItem(i); change.Resource == nil {
			change.Gone = true
		}
		u.Sets = append(u.Sets, cache.SetUpdate{Name: i.set, Changes: []cache.Change{change}})
	}
	for _, u := range updates {
		g.cache.Apply(*u)
	}
}

// goOn makes what waits pending, once the rollout for which it waits is over. The caller holds mu.
func (g *gate) goOn() {
	if g.machine.Began() {
		return
	}
	items := g.takeLater()
	g.renew(append(items, g.changed(false)...))
}

// endForLater ends the rollout under way, if something waits for that, and makes it pending. The caller
// holds mu.
func (g *gate) endForLater() {
	if items := g.takeLater(); len(items) > 0 {
		g.renew(append(items, g.changed(true)...))
	}
}
