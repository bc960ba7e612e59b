package cache

// Replaced is a resource that an update removes, or replaces with another content.
type Replaced struct {
	// Set and Change are the indices of the change in the update. Set is -1 for the change of an entry.
	Set, Change int
	Old         *Resource
}

// Replaces returns the resources that an update removes or replaces with another content. It costs a look-up for each
// change. The caller must apply no other update to the same scope before it applies this one.
func (c *Cache) Replaces(u *Update) (out []Replaced) {
	of := c.topics(u.Scope)
	if of == nil {
		return nil
	}
	add := func(set, change int, old *Resource, c *Change) {
		if old != nil && (c.removes() || c.Resource != nil && c.Resource.Hash() != old.Hash()) {
			out = append(out, Replaced{set, change, old})
		}
	}
	var found found
	of.find(&found, u)
	for i, e := range found.entries {
		if e != nil {
			add(-1, i, e.Snapshot().Resource, &u.Changes[i])
		}
	}
	for i, s := range found.sets {
		if s != nil && u.Sets[i].Err == nil {
			s.eachOld(&u.Sets[i], func(change int, old *Resource) { add(i, change, old, &u.Sets[i].Changes[change]) })
		}
	}
	return out
}

// eachOld calls f for the changes of the members that the set has.
func (s *Set) eachOld(u *SetUpdate, f func(change int, old *Resource)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status != Present {
		return
	}
	for i := range u.Changes {
		if m := s.members.Get(u.Changes[i].Name); m.Present() {
			f(i, m.Resource)
		}
	}
}
