package cache

import (
	"sync"
	"time"
)

// Change is the new state of one name.
type Change struct {
	// Name is the key of an entry (Key.Name), or of a set's member.
	Name string
	// Resource is nil if it does not exist, or could not be fetched.
	Resource *Resource
	// Err, if set, says that the resource could not be fetched: Resource is nil, and the last
	// good one stays. With Gone, the resource does not exist, and Err is the authority's
	// reason.
	Err  *Error
	Gone bool
	// Partial: Resource is made of others, and some of them could not be fetched. What is
	// missing in it may exist nevertheless.
	Partial bool
	// Origin is the origin's version of this state, nil if there is none. An entry with an
	// error then keeps its version.
	Origin *OriginVersion
}

// SetUpdate is the new state of one set, or its changes.
type SetUpdate struct {
	// Name is the set's key (Key.Name).
	Name    string
	Changes []Change
	// Full: Changes is the whole set, and other members are removed.
	Full bool
	// Partial: a part of the set could not be fetched. A missing member may exist
	// nevertheless. It is valid until the set's next update.
	Partial bool
	// Incomplete, of a Full update: more of the origin's first answer may follow. The set
	// keeps its missing members until an update is Complete, or is Full and not Incomplete.
	Incomplete, Complete bool
	// Origin is the origin's version of the set after these changes. If it is nil, the
	// version stays as long as the members do.
	Origin *OriginVersion
	// Err, if set, says that the set could not be fetched. The rest is ignored then.
	Err *Error
}

// Update has the changes of one response, of one type in one scope.
type Update struct {
	Scope   Scope
	TypeURL string
	// Changes are for the entries. Names without an entry are ignored.
	Changes []Change
	// Sets are for the sets. Those that nobody watches or watched are ignored.
	Sets []SetUpdate
	// Origin is the newest version of the origin. Most of the source's resources have it,
	// also those that are not in this update.
	Origin *OriginVersion
	// ExpiresAt has the times, by name, at which the resources with a TTL expire. It is for
	// sources that pass updates on, which may be late. The cache ignores it.
	ExpiresAt map[string]time.Time
}

// wakerLists are reused, as with many clients they are long.
var wakerLists = sync.Pool{New: func() any { return new([]Waker) }}

// Apply stores an update, and then wakes the watchers of what changed, which see it as a whole.
// It costs work for the changes and for their watchers only.
func (c *Cache) Apply(u Update) {
	of := c.topics(u.Scope)
	if of == nil {
		return
	}
	of.gate.storing.Lock()
	entries, sets := of.find(&u)
	plans := make([]plan, len(sets))
	for i, s := range sets {
		if s != nil {
			plans[i] = s.plan(&u.Sets[i])
		}
	}
	list := wakerLists.Get().(*[]Waker)
	wakers := (*list)[:0]
	of.gate.close()
	c.confirm(u.Origin)
	for i, e := range entries {
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
	of.gate.open()
	of.gate.storing.Unlock()
	for i, w := range wakers {
		w.Wake()
		wakers[i] = nil
	}
	*list = wakers
	wakerLists.Put(list)
}

func (c Change) state() State {
	switch {
	case c.Resource != nil:
		return State{Status: Present, Resource: c.Resource, Err: c.Err, Partial: c.Partial, Origin: c.Origin}
	case c.Err != nil && !c.Gone:
		return State{Status: Failed, Err: c.Err, Origin: c.Origin}
	default:
		return State{Status: Absent, Err: c.Err, Origin: c.Origin}
	}
}

// atOnce is how many changes are looked up, or stored in a set, before the lock is released for
// others.
const atOnce = 1024

// find returns the topics of an update, nil for those that the cache does not have.
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
