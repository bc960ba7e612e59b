package cache

import (
	"sync"
	"time"
)

// Change is what became of one name.
type Change struct {
	// Name is what the entry is kept under (Key.Name), and a set's member too.
	Name string
	// Resource is the new state; nil if it does not exist, or could not be had.
	Resource *Resource
	// Err, if set, says that the resource could not be had: Resource is nil and
	// the last good one stays. With Gone it is what the authority said of a
	// resource that does not exist.
	Err  *Error
	Gone bool
	// Partial says of a Resource that is put together from others that some of them
	// could not be had: what is missing in it may exist nevertheless.
	Partial bool
	// Origin is the version with which the origin said so, nil if there is none: what could
	// not be had anew then stays what it was.
	Origin *OriginVersion
}

// SetUpdate is what became of one set.
type SetUpdate struct {
	// Name is the name that the set is kept under (Key.Name).
	Name    string
	Changes []Change
	// Full says that Changes is the whole set: members not in it are gone.
	Full bool
	// Partial says that a part of the set could not be had: a member that is missing
	// may exist nevertheless. It holds until the next update of the set.
	Partial bool
	// Incomplete says of a Full update that more of the origin's first answer may follow: a
	// member that is missing may exist nevertheless. The set keeps those that it has until
	// an update says that the answer is Complete, or is Full and not Incomplete.
	Incomplete, Complete bool
	// Origin is the version that the set has with these changes, nil if there is none: it
	// stays what it was if its members do.
	Origin *OriginVersion
	// Err, if set, says that the set could not be had; the rest is ignored.
	Err *Error
}

// Update is what one response says of one type in one scope.
type Update struct {
	Scope   Scope
	TypeURL string
	// Changes are for the entries. Names without an entry are ignored.
	Changes []Change
	// Sets are for the sets. Those that nobody asked for are ignored.
	Sets []SetUpdate
	// Origin is the version that the source's resources have now, or most of them: those
	// that this update does not have, too.
	Origin *OriginVersion
	// ExpiresAt has the times, by name, at which the resources with a TTL expire. It is for
	// sources that pass updates on, which may be late. The cache ignores it.
	ExpiresAt map[string]time.Time
}

// wakerLists are reused from update to update: with many clients they are long.
var wakerLists = sync.Pool{New: func() any { return new([]Waker) }}

// Apply stores an update and tells those concerned, who see it as a whole: they
// are woken after the last of it has been stored. The cost is that of the
// changes and of the watchers of what changed.
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

// atOnce is how many changes are looked up, or stored in a set, without letting others have
// the lock.
const atOnce = 1024

// find returns the topics that an update is about, nil for those that are not
// kept.
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
