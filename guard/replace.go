package guard

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// A member with the claim of another one takes its place: see resource.Resource.Claims. Clients cannot have both, so the
// other one is neither lost nor held.

// members iterates over the members of a set.
type members func(yield func(key string, r *cache.Resource))

// replace returns the lost members whose place nothing has taken. The place of a lost or held member is taken by what the
// update has, or by what has stayed in the set. replaced are the members that were held until now.
func (s *set) replace(typeURL string, u *cache.SetUpdate, lost []removal, stay members) (left []removal, replaced []string) {
	if !cache.HasClaims(typeURL) || len(lost)+len(s.held) == 0 {
		return lost, nil
	}
	taken := map[uint64]struct{}{}
	take := func(r *cache.Resource) {
		for _, claim := range r.Claims() {
			taken[claim] = struct{}{}
		}
	}
	named := map[string]struct{}{}
	for i := range u.Changes {
		c := &u.Changes[i]
		if c.Resource != nil {
			take(c.Resource)
		}
		if c.HasState() && len(lost) > 0 {
			named[c.Name] = struct{}{}
		}
	}
	if len(lost) > 0 {
		var others []*cache.Resource // read first: nobody can use the set during the loop
		stay(func(name string, r *cache.Resource) {
			_, held := s.held[name]
			if _, is := named[name]; !is && !held && r != nil {
				others = append(others, r)
			}
		})
		for _, r := range others {
			take(r)
		}
	}
	if len(taken) == 0 {
		return lost, nil
	}
	isTaken := func(claim uint64) bool { _, is := taken[claim]; return is }
	for name, e := range s.held {
		if slices.ContainsFunc(e.claims, isTaken) {
			delete(s.held, name)
			replaced = append(replaced, name)
		}
	}
	lost = slices.DeleteFunc(lost, func(g removal) bool {
		return g.resource != nil && slices.ContainsFunc(g.resource.Claims(), isTaken)
	})
	return lost, replaced
}

// withRemovals returns changes that also remove members. It does not change the slice.
func withRemovals(changes []cache.Change, names []string) []cache.Change {
	if len(names) == 0 {
		return changes
	}
	gone := map[string]struct{}{}
	for _, name := range names {
		gone[name] = struct{}{}
	}
	for i := range changes {
		delete(gone, changes[i].Name)
	}
	all := make([]cache.Change, 0, len(gone)+len(changes))
	for _, name := range names {
		if _, is := gone[name]; is {
			all = append(all, cache.Change{Name: name, Gone: true})
		}
	}
	return append(all, changes...)
}
