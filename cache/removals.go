package cache

// Removals are the members that an update of a set would remove. The guard decides whether the set
// keeps them nevertheless.
type Removals struct {
	// Present: the set had an answer before. Len is its number of members.
	Present bool
	Len     int
	// Gone are the members that the update would remove.
	Gone []Removal
}

// Removal is a member that an update would remove. Err and Answer are those of its Change, if it has
// one.
type Removal struct {
	Key      string
	Resource *Resource
	Err      *Error
	Answer   Answer
}

// Removals returns the members that an update of one set would remove. The caller must apply the update
// before any other update that removes members of the set. The update must name what it removes
// (SetUpdate.Explicit). Removals costs a look-up for each change that removes.
func (c *Cache) Removals(scope Scope, typeURL string, u *SetUpdate) (out Removals) {
	of := c.topics(scope)
	if of == nil || u.Err != nil {
		return out
	}
	of.gate.storing.Lock() // so that the set does not change, as for plan
	defer of.gate.storing.Unlock()
	if s := of.set(typeURL, u.Name); s != nil {
		return s.removedBy(u)
	}
	return out
}

// removedBy is Removals of one set. As with plan, the caller holds gate.storing.
func (s *Set) removedBy(u *SetUpdate) Removals {
	out := Removals{Present: s.status == Present, Len: s.present}
	if !out.Present {
		return out
	}
	for i := range u.Changes {
		if c := &u.Changes[i]; c.removes() {
			if m := s.members.Get(c.Name); m.Present() {
				out.Gone = append(out.Gone, Removal{c.Name, m.Resource, c.Err, c.Answer})
			}
		}
	}
	return out
}
