package cache

import "github.com/xds-relay/xds-relay/cache/internal/members"

// Reading resources without a watch, for the operator's pages.

// Item is a resource, or a name without one, as an operator sees it.
type Item struct {
	// Key is the name's own: a member of a set has the key that an entry of that name would have.
	Key    Key
	Status Status
	// Resource is nil if the cache has none. Err says why it has none, or no newer one.
	Resource *Resource
	Err      *Error
	Stale    bool
	// Since is when the content or the status last changed, in nanoseconds since 1970; 0 if that is not known.
	Since int64
	// Set is the name of the set that the item is a member of, "" for an entry.
	Set string
}

// Browse calls yield for each entry of a scope, and for each member of its sets, until yield returns false. A name
// that is both comes twice. No lock is held for long: a name that changes during the call may come twice, or not at
// all. yield must be short, and must not call the cache.
func (c *Cache) Browse(scope Scope, typeURL string, yield func(Item) bool) {
	topics := c.topics(scope)
	if topics == nil {
		return
	}
	var sets []*Set
	if !topics.browseEntries(typeURL, &sets, yield) {
		return
	}
	for _, s := range sets {
		if !s.browse(yield) {
			return
		}
	}
}

// browseEntries calls yield for the entries of a type, or of all types if typeURL is empty, and collects the sets.
func (ts *scopeTopics) browseEntries(typeURL string, sets *[]*Set, yield func(Item) bool) bool {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	n := 0
	for url, t := range ts.tables {
		if typeURL != "" && url != typeURL {
			continue
		}
		for _, s := range t.sets {
			*sets = append(*sets, s)
		}
		for _, e := range t.entries {
			if !yield(e.item()) {
				return false
			}
			if n++; n%atOnce == 0 { // lets others take the lock
				ts.mu.RUnlock()
				ts.mu.RLock()
			}
		}
	}
	return true
}

func (e *Entry) item() Item {
	s := e.Snapshot()
	return Item{Key: e.key, Status: s.Status, Resource: s.Resource, Err: s.Err, Stale: s.Stale, Since: s.Since}
}

// browse calls yield for the members of a set.
func (s *Set) browse(yield func(Item) bool) bool {
	for seq, more := uint64(0), true; more; {
		seq, more = s.browseAfter(seq, yield)
		if !more && seq == stopped {
			return false
		}
	}
	return true
}

// stopped is the position that browseAfter returns if yield returned false.
const stopped = ^uint64(0)

// browseAfter calls yield for some members that changed after seq. It returns the position of the last one, and
// whether there are more.
func (s *Set) browseAfter(seq uint64, yield func(Item) bool) (last uint64, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for m := range s.members.After(seq) {
		if n++; n > atOnce {
			return seq, true
		}
		seq = m.Seq
		if m.Removed {
			continue
		}
		item := s.item(s.members.Key(m), m)
		if !yield(item) {
			return stopped, false
		}
	}
	return seq, false
}

// item returns a member as an operator sees it. The caller holds the set's lock.
func (s *Set) item(key string, m members.Member) Item {
	i := Item{Key: Key{s.key.Scope, s.key.TypeURL, key}, Status: Present, Resource: m.Resource, Stale: s.stale, Since: s.sinceOf(m.Seq), Set: s.key.Name}
	if n := s.notes.byKey[key]; n != nil {
		i.Err = n.err
	}
	return i
}

// Look returns what the cache knows about a name: its entry, or else the member of a set. found is false if the cache
// knows nothing. A name that is missing from a complete wildcard is Absent.
func (c *Cache) Look(k Key) (i Item, found bool) {
	c.read(k, func(t *table) {
		if e := t.entries[k.Name]; e != nil {
			i, found = e.item(), true
			return
		}
		for _, s := range t.sets {
			if i, found = s.look(k.Name); found && i.Status == Present {
				return
			}
		}
	})
	return i, found
}

// look returns what a set knows about a name.
func (s *Set) look(name string) (i Item, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.members.Get(name); m.Present() {
		return s.item(name, m), true
	}
	if s.status != Present || s.partial || s.key.Name != Wildcard {
		return Item{}, false
	}
	if n := s.notes.byKey[name]; n != nil && n.err != nil {
		return Item{Key: Key{s.key.Scope, s.key.TypeURL, name}, Status: Failed, Err: n.err, Set: s.key.Name}, true
	}
	return Item{Key: Key{s.key.Scope, s.key.TypeURL, name}, Status: Absent, Stale: s.stale, Set: s.key.Name}, true
}

// LookSet returns the number of members of a wildcard or glob, and its status. found is false if the cache does not
// have the set.
func (c *Cache) LookSet(k Key) (members int, status Status, found bool) {
	c.read(k, func(t *table) {
		if s := t.sets[k.Name]; s != nil {
			status, _ = s.Status()
			members, found = s.Len(), true
		}
	})
	return members, status, found
}
