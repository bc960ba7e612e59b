package cache

import (
	"slices"

	"github.com/xds-relay/xds-relay/urn"
)

// A set can be behind a name of its directory, which is the same resource: the source has sent the name while its
// first answer for the set is not complete, and the set still has what an earlier source, or an earlier subscription
// of this one, said of it. A client with both subscriptions is sent the name's resource, and the set's when the name
// is gone. So that it is not sent an older one then, the member follows the name (Change.Member).

// withMembers returns an update with the members that follow a name. Only what a set has can follow: an answer for
// a set has all of its members, which those names are not. gate.storing is locked.
func (of *scopeTopics) withMembers(u Update) Update {
	var places map[string]int // in u.Sets
	said := len(u.Sets)
	for i := range u.Changes {
		c := &u.Changes[i]
		if !c.Member || c.Resource == nil {
			continue
		}
		glob, ok := urn.GlobOf(c.Name)
		if !ok {
			continue
		}
		if places == nil {
			places = make(map[string]int, said+1)
			for i := range u.Sets {
				places[u.Sets[i].Name] = i
			}
		}
		at, there := places[glob]
		if there && at < said {
			continue // the source speaks of the set itself
		}
		s := of.set(u.TypeURL, glob)
		if s == nil {
			continue
		}
		s.mu.Lock()
		m := s.members.Get(c.Name)
		has, partial, stale := s.status == Present && m.Present(), s.partial, s.stale
		s.mu.Unlock()
		if !has {
			continue
		}
		if !there {
			at = len(u.Sets)
			places[glob] = at
			u.Sets = append(slices.Clip(u.Sets), SetUpdate{Name: glob, Partial: partial, Stale: stale})
		}
		u.Sets[at].Changes = append(u.Sets[at].Changes, Change{Name: c.Name, Resource: c.Resource})
	}
	return u
}

// set returns the set of a type, nil if the cache does not have it.
func (of *scopeTopics) set(typeURL, name string) *Set {
	of.mu.RLock()
	defer of.mu.RUnlock()
	if t := of.tables[typeURL]; t != nil {
		return t.sets[name]
	}
	return nil
}
