package cache

// Comparison says how an update differs from the cached state of its topics. The store uses it to find
// what it has to write.
type Comparison struct {
	// Entries are the indices of the Changes that differ from their entries.
	Entries []int
	// Sets has one element for each set of the update, in the same order.
	Sets []SetComparison
}

// SetComparison is the comparison of one set.
type SetComparison struct {
	// Known: the cache has the set. Present: it had an answer before.
	Known, Present bool
	// Changes are the indices of the changes that differ from the set. Added is how many of
	// them are new members.
	Changes []int
	Added   int
	// Len is the number of members before the update.
	Len int
}

// Compare compares an update with the cached state of its topics. It costs one look-up per change. The
// caller must apply no other update to the same scope before it applies this one.
func (c *Cache) Compare(u *Update) (out Comparison) {
	out.Sets = make([]SetComparison, len(u.Sets))
	of := c.topics(u.Scope)
	if of == nil {
		return out
	}
	var found found
	of.find(&found, u)
	for i, e := range found.entries {
		if e != nil && u.Changes[i].hasState() && e.Snapshot().differs(&u.Changes[i]) {
			out.Entries = append(out.Entries, i)
		}
	}
	for i, s := range found.sets {
		if s != nil {
			out.Sets[i] = s.compare(&u.Sets[i])
		}
	}
	return out
}

// hasState reports whether a change has a new state of its name, and not only an error.
func (c *Change) hasState() bool { return c.Resource != nil || c.removes() }

func (s *State) differs(c *Change) bool {
	if c.Resource == nil {
		return s.Status != Absent
	}
	return !sameResource(s.Resource, c.Resource)
}

func (s *Set) compare(u *SetUpdate) SetComparison {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := SetComparison{Known: true, Present: s.status == Present, Len: s.present}
	if u.Err != nil {
		return out
	}
	for i := range u.Changes {
		c := &u.Changes[i]
		if !c.hasState() {
			continue
		}
		m := s.members.Get(c.Name)
		switch {
		case c.Resource == nil && out.Present && !m.Present():
			continue
		case c.Resource != nil && !m.Present():
			out.Added++
		case c.Resource != nil && sameResource(m.Resource, c.Resource):
			continue
		}
		out.Changes = append(out.Changes, i)
	}
	return out
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

// Unanswered reports whether the cache has a topic that is neither Present nor Absent.
func (c *Cache) Unanswered(k Key) (is bool) {
	c.read(k, func(t *table) {
		if e := t.entries[k.Name]; e != nil {
			st := e.Snapshot().Status
			is = st == Requested || st == Failed
		} else if s := t.sets[k.Name]; s != nil {
			st, _ := s.Status()
			is = st != Present
		}
	})
	return is
}

// Find returns the topic under k, nil if the cache does not have it.
func (c *Cache) Find(k Key) (e *Entry, s *Set) {
	c.read(k, func(t *table) { e, s = t.entries[k.Name], t.sets[k.Name] })
	return e, s
}
