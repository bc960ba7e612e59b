package cache

import (
	"runtime"
	"sync"

	"github.com/xds-relay/xds-relay/propagation"
)

// wakerLists are reused, because they are long if there are many clients.
var wakerLists = sync.Pool{New: func() any { return new([]Waker) }}

// Apply stores an update, and then wakes the watchers of the changed topics, so that they see the
// update as a whole. Its cost depends only on the changes and their watchers.
func (c *Cache) Apply(u Update) {
	of := c.topics(u.Scope)
	if of == nil {
		return
	}
	of.gate.storing.Lock()
	u = of.withMembers(u)
	entries, sets := of.find(&u)
	plans := make([]plan, len(sets))
	for i, s := range sets {
		if s != nil {
			plans[i] = s.plan(&u.Sets[i])
		}
	}
	list := wakerLists.Get().(*[]Waker)
	wakers := (*list)[:0]
	change := c.begin(&u)
	of.gate.close()
	of.change = change
	c.confirm(u.Origin)
	for i, e := range entries {
		if i%atOnce == atOnce-1 {
			runtime.Gosched() // see Set.apply
		}
		if e != nil {
			c.confirm(u.Changes[i].Origin)
			wakers = e.set(u.Changes[i].state(), wakers)
		}
	}
	for i, s := range sets {
		if s != nil {
			c.confirm(u.Sets[i].Origin)
			wakers = s.apply(&u.Sets[i], &plans[i], wakers)
		}
	}
	of.change = nil
	change.Open()
	of.gate.open()
	of.gate.storing.Unlock()
	u.Receipt.Event("stored in the cache", nil)
	for i, w := range wakers {
		w.Wake()
		wakers[i] = nil
	}
	*list = wakers
	wakerLists.Put(list)
}

// begin returns the measurement of an update's way to clients, nil if it is not measured. Updates of
// Scope.New are not measured: their clients are not notified of a change, but moved to that scope.
func (c *Cache) begin(u *Update) *propagation.Change {
	if u.Scope.New {
		return nil
	}
	return c.changes.Begin(u.Receipt, u.Scope.Authority, u.TypeURL)
}

// find returns the topics of an update, each nil if the cache does not have it.
func (of *scopeTopics) find(u *Update) ([]*Entry, []*Set) {
	entries, sets := make([]*Entry, len(u.Changes)), make([]*Set, len(u.Sets))
	for i := 0; i == 0 || i < len(u.Changes); i += atOnce {
		of.mu.RLock()
		t := of.tables[u.TypeURL]
		if t == nil {
			of.mu.RUnlock()
			return entries, sets
		}
		if i == 0 {
			for i := range u.Sets {
				sets[i] = t.sets[u.Sets[i].Name]
			}
		}
		if len(t.entries) == 0 {
			of.mu.RUnlock()
			return nil, sets
		}
		for k := i; k < min(i+atOnce, len(u.Changes)); k++ {
			entries[k] = t.entries[u.Changes[k].Name]
		}
		of.mu.RUnlock()
	}
	return entries, sets
}

// confirm makes the version that the source has set visible to clients. Only Apply calls it.
func (c *Cache) confirm(v *OriginVersion) {
	if v == nil {
		return
	}
	if known := v.known.Load(); known == nil || known.version != v.latest {
		v.known.Store(&knownVersion{version: v.latest, order: c.versions.Add(1)})
	}
}
