package cache

// Before is what the cache has of the topics of an update, before it gets the update. The guard and the store compare
// the update with it.
type Before struct {
	// Entries has the states of the names, in the order of Changes, each nil if the cache does not have the entry. It is
	// empty if the cache has no entries of the type.
	Entries []*State
	// Sets has one element for each set of the update, in the same order.
	Sets []SetBefore
}

// SetBefore is what the cache has of one set.
type SetBefore struct {
	// Known: the cache has the set. Present: it had an answer before.
	Known, Present bool
	// Beginning: the answer with which the set began is not complete, so that a new member belongs to it.
	Beginning bool
	// Len is the number of members.
	Len int
	// members are those that the changes name, in the order of the changes; nil if there are none.
	members []*Resource
}

// Before returns what the cache has of the topics of an update. removals: only members that the update removes matter.
// It costs one look-up per change. The caller must apply no other update to the same scope before it applies this one.
func (c *Cache) Before(u *Update, removals bool) (b Before) {
	b.Sets = make([]SetBefore, len(u.Sets))
	topics := c.topics(u.Scope)
	if topics == nil {
		return b
	}
	var found found
	topics.find(&found, u)
	b.Entries = make([]*State, len(found.entries))
	for i, e := range found.entries {
		if e != nil {
			b.Entries[i] = e.Snapshot()
		}
	}
	for i, s := range found.sets {
		if s != nil {
			b.Sets[i] = s.before(&u.Sets[i], removals)
		}
	}
	return b
}

func (s *Set) before(u *SetUpdate, removals bool) SetBefore {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := SetBefore{Known: true, Present: s.status == Present, Beginning: s.beginning && s.first != nil, Len: s.present}
	if u.Err != nil || !b.Present {
		return b
	}
	for i := range u.Changes {
		if c := &u.Changes[i]; c.Removes() || c.Resource != nil && !removals {
			if m := s.members.Get(c.Name); m.Present() {
				if b.members == nil {
					b.members = make([]*Resource, len(u.Changes))
				}
				b.members[i] = m.Resource
			}
		}
	}
	return b
}

// Member returns the member that the change with an index names, nil if there is none.
func (b *SetBefore) Member(i int) *Resource {
	if b.members == nil {
		return nil
	}
	return b.members[i]
}

// Changes reports whether a change of the set, with its index, makes a difference.
func (b *SetBefore) Changes(i int, c *Change) bool {
	if c.Resource == nil {
		return c.Removes() && (!b.Present || b.Member(i) != nil)
	}
	return !sameResource(b.Member(i), c.Resource)
}

// Changes reports whether a change of a name, with its index, makes a difference.
func (b *Before) Changes(i int, c *Change) bool {
	switch {
	case len(b.Entries) == 0 || b.Entries[i] == nil:
		return false
	case c.Resource == nil:
		return c.Removes() && b.Entries[i].Status != Absent
	}
	return !sameResource(b.Entries[i].Resource, c.Resource)
}

// Replaced calls f for each resource that the update removes or replaces with another content: with the indices of the
// set, -1 for a name, and of the change.
func (b *Before) Replaced(u *Update, f func(set, change int, old *Resource)) {
	add := func(set, change int, old *Resource, c *Change) {
		if old != nil && (c.Removes() || c.Resource != nil && c.Resource.Hash() != old.Hash()) {
			f(set, change, old)
		}
	}
	for i, e := range b.Entries {
		if e != nil {
			add(-1, i, e.Resource, &u.Changes[i])
		}
	}
	for i := range b.Sets {
		for j, old := range b.Sets[i].members {
			add(i, j, old, &u.Sets[i].Changes[j])
		}
	}
}

// sameResource reports whether two resources are the same, including their names and versions.
func sameResource(a, b *Resource) bool {
	return a == b || a != nil && a.Hash() == b.Hash() && a.Version() == b.Version() && a.Name() == b.Name() &&
		a.TTL() == b.TTL() && a.DoNotCache() == b.DoNotCache() && a.Alias() == b.Alias()
}

// Len returns the number of members of a set, 0 if the cache does not have the set.
func (c *Cache) Len(k Key) (n int) {
	c.read(k, func(t *table) {
		if s := t.sets[k.Name]; s != nil {
			n = s.Len()
		}
	})
	return n
}

// Has reports whether the cache has a topic: it is watched, or it lingers.
func (c *Cache) Has(k Key) (has bool) {
	c.read(k, func(t *table) {
		has = t.entries[k.Name] != nil || t.sets[k.Name] != nil
	})
	return has
}

// Find returns the topic under k, nil if the cache does not have it.
func (c *Cache) Find(k Key) (e *Entry, s *Set) {
	c.read(k, func(t *table) { e, s = t.entries[k.Name], t.sets[k.Name] })
	return e, s
}
