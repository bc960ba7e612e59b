package cache

import (
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/urn"
)

// A set can be behind the entry of one of its members: the source has sent the entry's resource while its first
// answer for the set is incomplete, and the set still has the member as an earlier source, or an earlier subscription,
// sent it. A client that subscribes to both receives the entry's resource, and the set's member if it unsubscribes
// from the entry. The member therefore follows the entry (Change.Member), so that the client does not receive an older
// resource then.
//
// Only names that are members already follow: which names are members, only an answer for the set decides. A resource
// of another name may have come into being since the set was answered, so until the next answer the set awaits it: the
// client keeps the resource when it unsubscribes from the entry.

// withMembers returns an update with the members that follow their entries. gate.storing is locked.
func (ts *scopeTopics) withMembers(u Update) Update {
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
		place, there := places[glob]
		if there && place < said {
			continue // the source's update has the set itself
		}
		s := ts.set(u.TypeURL, glob)
		if s == nil {
			continue
		}
		has, partial, stale := s.noteNamed(c.Name)
		if !has {
			continue
		}
		if !there {
			place = len(u.Sets)
			places[glob] = place
			u.Sets = append(slices.Clip(u.Sets), SetUpdate{Name: glob, Partial: partial, Stale: stale})
		}
		u.Sets[place].Changes = append(u.Sets[place].Changes, Change{Name: c.Name, Resource: c.Resource})
	}
	return u
}

// set returns the set of a type, nil if the cache does not have it.
func (ts *scopeTopics) set(typeURL, name string) *Set {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	if t := ts.tables[typeURL]; t != nil {
		return t.sets[name]
	}
	return nil
}

// noteNamed notes that a name exists, of which the set need not know. It reports whether that is a member, and whether the
// set is partial and stale.
func (s *Set) noteNamed(key string) (has, partial, stale bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status != Present {
		return false, false, false
	}
	m := s.members.Get(key)
	if has = m.Present(); !has {
		if s.unknown == nil {
			s.unknown = map[string]struct{}{}
		}
		s.unknown[strings.Clone(key)] = struct{}{}
	}
	return has, s.partial, s.stale
}
