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
	// Origin is the version that the feeder's resources have now, or most of them: those
	// that this update does not have, too.
	Origin *OriginVersion
	// Ends says, by name, when the times to live end of what has one, for who passes
	// the update on: what is in it may have come before. The cache does not look at it.
	Ends map[string]time.Time
}

// wakerLists are reused from update to update: with many clients they are long.
var wakerLists = sync.Pool{New: func() any { return new([]Waker) }}

// Apply stores an update and tells those concerned, who see it as a whole: they
// are woken after the last of it has been stored. The cost is that of the
// changes and of the watchers of what changed.
func (c *Cache) Apply(u Update) {
	entries, sets := c.find(u)
	list := wakerLists.Get().(*[]Waker)
	wakers := (*list)[:0]
	c.still.Lock()
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
			wakers = s.apply(u.Sets[i], wakers)
		}
	}
	c.still.Unlock()
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

// find returns the topics that an update is about, nil for those that are not
// kept.
func (c *Cache) find(u Update) ([]*Entry, []*Set) {
	entries, sets := make([]*Entry, len(u.Changes)), make([]*Set, len(u.Sets))
	c.mu.RLock()
	defer c.mu.RUnlock()
	t := c.tables[tableKey{u.Scope, u.TypeURL}]
	if t == nil {
		return nil, nil
	}
	for i := range u.Changes {
		entries[i] = t.entries[u.Changes[i].Name]
	}
	for i := range u.Sets {
		sets[i] = t.sets[u.Sets[i].Name]
	}
	return entries, sets
}
