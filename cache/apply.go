package cache

import (
	"cmp"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/uptime"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// applications are reused, because the lists of wakers are long if there are many clients.
var applications = sync.Pool{New: func() any { return new(application) }}

// application is what one call of Apply needs.
type application struct {
	parts  []storing
	wakers []Waker
}

// Apply stores updates of one scope, one for each type, and then wakes the watchers of the changed topics, so that they
// see the updates as a whole. It sets their Progress. The updates are in the order in which clients need their types: see InOrder. The cost
// depends only on the changes and their watchers.
func (c *Cache) Apply(updates ...Update) {
	if len(updates) == 0 {
		return
	}
	topics := c.topics(updates[0].Scope)
	if topics == nil {
		return
	}
	topics.gate.storing.Lock()
	a := applications.Get().(*application)
	parts := slices.Grow(a.parts, len(updates))[:len(updates)]
	for i := range updates {
		topics.prepare(&parts[i], &updates[i])
		if parts[i].change = c.begin(&updates[i]); parts[i].change != nil {
			updates[i].Progress = parts[i].change.Progress
		}
	}
	wakers := a.wakers
	topics.gate.close()
	topics.storedAt = max(1, uptime.Millis())
	for i := range parts {
		wakers = c.store(topics, &parts[i], wakers)
	}
	for i := range parts {
		parts[i].change.Open()
	}
	topics.gate.open()
	topics.gate.storing.Unlock()
	for i := range updates {
		updates[i].Receipt.Event("stored in the cache", nil)
	}
	for _, w := range wakers {
		w.Wake()
	}
	clear(wakers)
	clear(parts)
	a.parts, a.wakers = parts[:0], wakers[:0]
	applications.Put(a)
}

// storing is an update that is being stored.
type storing struct {
	update  Update
	found   found
	plans   []plan // of sets
	onePlan [1]plan
	change  *propagation.Change
}

// found are the topics of an update, nil where the cache does not have one. Most updates have at most one set.
type found struct {
	entries []*Entry
	sets    []*Set
	oneSet  [1]*Set
}

// prepare finds the topics of an update, and what it removes. gate.storing is locked.
func (ts *scopeTopics) prepare(st *storing, u *Update) {
	st.update = ts.withMembers(*u)
	ts.find(&st.found, &st.update)
	if st.plans = st.onePlan[:]; len(st.found.sets) > 1 {
		st.plans = make([]plan, len(st.found.sets))
	}
	for i, s := range st.found.sets {
		if s != nil {
			st.plans[i] = s.plan(&st.update.Sets[i])
		}
	}
}

// store stores a prepared update. The scope's gate is closed.
func (c *Cache) store(topics *scopeTopics, st *storing, wakers []Waker) []Waker {
	u := &st.update
	topics.change = st.change
	c.confirm(u.Origin)
	for i, e := range st.found.entries {
		if i%atOnce == atOnce-1 {
			runtime.Gosched() // see Set.apply
		}
		if e != nil {
			c.confirm(u.Changes[i].Origin)
			wakers = e.set(u.Changes[i].state(), wakers)
		}
	}
	for i, s := range st.found.sets {
		if s != nil {
			c.confirm(u.Sets[i].Origin)
			wakers = s.apply(&u.Sets[i], &st.plans[i], wakers)
		}
	}
	topics.change = nil
	return wakers
}

// InOrder sorts updates by their scopes, and those of a scope in the order in which clients need their types. Updates of
// one scope and type stay in their order.
func InOrder(updates []Update) {
	slices.SortStableFunc(updates, func(a, b Update) int {
		return cmp.Or(a.Scope.compare(b.Scope), cmp.Compare(xdstype.Of(a.TypeURL).Order, xdstype.Of(b.TypeURL).Order), strings.Compare(a.TypeURL, b.TypeURL))
	})
}

// EachScope iterates over sorted updates by scope, each time with all updates of one scope.
func EachScope(updates []Update) iter.Seq[[]Update] {
	return func(yield func([]Update) bool) {
		for len(updates) > 0 {
			n := 1
			for n < len(updates) && updates[n].Scope == updates[0].Scope {
				n++
			}
			if !yield(updates[:n:n]) {
				return
			}
			updates = updates[n:]
		}
	}
}

// begin returns the measurement of an update's way to clients, nil if it is not measured. Updates of
// Scope.New are not measured: their clients are not notified of a change, but moved to that scope.
func (c *Cache) begin(u *Update) *propagation.Change {
	if u.Scope.New {
		return nil
	}
	return c.changes.Begin(u.Receipt, u.Scope.Authority, u.TypeURL)
}

// find finds the topics of an update.
func (ts *scopeTopics) find(f *found, u *Update) {
	if f.sets = f.oneSet[:min(len(u.Sets), 1)]; len(u.Sets) > 1 {
		f.sets = make([]*Set, len(u.Sets))
	}
	f.entries = make([]*Entry, len(u.Changes))
	for i := 0; i == 0 || i < len(u.Changes); i += atOnce {
		ts.mu.RLock()
		t := ts.tables[u.TypeURL]
		if t == nil {
			ts.mu.RUnlock()
			return
		}
		if i == 0 {
			for i := range u.Sets {
				f.sets[i] = t.sets[u.Sets[i].Name]
			}
		}
		if len(t.entries) == 0 {
			ts.mu.RUnlock()
			f.entries = nil
			return
		}
		for k := i; k < min(i+atOnce, len(u.Changes)); k++ {
			f.entries[k] = t.entries[u.Changes[k].Name]
		}
		ts.mu.RUnlock()
	}
}

// confirm makes the version that the source has set visible to clients. Only Apply calls it.
func (c *Cache) confirm(v *OriginVersion) {
	if v == nil {
		return
	}
	if known := v.known.Load(); known == nil || known.version != v.visible() {
		v.known.Store(&knownVersion{version: v.visible(), order: c.versions.Add(1)})
	}
}
