package cache

// Removals are the members that an update of a set would remove, for who keeps them nevertheless
// (Change.Held).
type Removals struct {
	// Present says that the set had an answer before, and Len how many members it has.
	Present bool
	Len     int
	// Gone are the members, under their keys.
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

// Removals returns what an update of one set would remove from it. The caller applies the update
// after that, and nobody else removes members of the set in between. It costs a look-up for each
// change; and as much for each member, if a full update removes any.
func (c *Cache) Removals(scope Scope, typeURL string, u *SetUpdate) (out Removals) {
	of := c.topics(scope)
	if of == nil || u.Err != nil {
		return out
	}
	of.gate.storing.Lock() // so that what is read does not change, as for plan
	defer of.gate.storing.Unlock()
	_, sets := of.find(&Update{TypeURL: typeURL, Sets: []SetUpdate{{Name: u.Name}}})
	if s := sets[0]; s != nil {
		return s.removedBy(u)
	}
	return out
}

// removedBy is called with gate.storing locked, as plan is.
func (s *Set) removedBy(u *SetUpdate) Removals {
	out := Removals{Present: s.status == Present, Len: s.present}
	if !out.Present {
		return out
	}
	stay := 0 // of those that the set has
	for i := range u.Changes {
		c := &u.Changes[i]
		switch m := s.members.Get(c.Name); {
		case !m.Present():
		case c.removes():
			out.Gone = append(out.Gone, Removal{c.Name, m.Resource, c.Err, c.Answer})
		default:
			stay++
		}
	}
	switch {
	case u.Full && u.Incomplete, !u.completes():
	case u.Full && stay+len(out.Gone) < s.present:
		named := make(map[string]struct{}, len(u.Changes))
		for i := range u.Changes {
			named[u.Changes[i].Name] = struct{}{}
		}
		for m := range s.members.All() {
			key := s.members.Key(m)
			if _, ok := named[key]; !ok && !m.Removed {
				out.Gone = append(out.Gone, Removal{Key: key, Resource: m.Resource})
			}
		}
	case !u.Full && s.first != nil:
		for key := range s.first.missing {
			if m := s.members.Get(key); m.Present() {
				out.Gone = append(out.Gone, Removal{Key: key, Resource: m.Resource})
			}
		}
	}
	return out
}
