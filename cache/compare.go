package cache

// Comparison says how an update differs from what the cache has of its topics, for who keeps what
// is accepted. It costs a look-up for each change.
type Comparison struct {
	// Entries are the indices of the Changes that are not what their entries have.
	Entries []int
	// Sets are the update's sets, in its order.
	Sets []SetComparison
}

// SetComparison is the part of one set.
type SetComparison struct {
	// Known says that the cache has the set, and Present that it had an answer before.
	Known, Present bool
	// Changes are the indices of the changes that are not what the set has. Added is how many of
	// them are new members.
	Changes []int
	Added   int
	// Len is the number of members before the update.
	Len int
}

// Compare compares an update with what the cache has of its topics. The caller applies the update
// after that, and no other to the same scope in between.
func (c *Cache) Compare(u *Update) (out Comparison) {
	out.Sets = make([]SetComparison, len(u.Sets))
	of := c.topics(u.Scope)
	if of == nil {
		return out
	}
	entries, sets := of.find(u)
	for i, e := range entries {
		if e != nil && u.Changes[i].hasState() && e.Snapshot().differs(&u.Changes[i]) {
			out.Entries = append(out.Entries, i)
		}
	}
	for i, s := range sets {
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
		case c.Held && m.Present():
			continue
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

// sameResource reports whether two resources are the same, with their names and versions.
func sameResource(a, b *Resource) bool {
	return a == b || a != nil && a.Hash() == b.Hash() && a.Version() == b.Version() && a.Name() == b.Name() &&
		a.TTL() == b.TTL() && a.DoNotCache() == b.DoNotCache() && a.Alias() == b.Alias()
}

// Len returns the number of members that the cache has of a set.
func (c *Cache) Len(k Key) (n int) {
	c.read(k, func(t *table) {
		if s := t.sets[k.Name]; s != nil {
			n = s.Len()
		}
	})
	return n
}

// Has reports whether the cache has a topic: somebody watches it, or it lingers.
func (c *Cache) Has(k Key) (has bool) {
	c.read(k, func(t *table) {
		has = t.entries[k.Name] != nil || t.sets[k.Name] != nil
	})
	return has
}

// Unanswered reports whether the cache has a topic and no state of it yet, be it good or not.
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
