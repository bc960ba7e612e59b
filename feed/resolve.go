package feed

import (
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// What an answer removes is decided here, and only here. After resolve, an update names every member that it removes, and
// no judge looks at what it does not name.

// resolver has the sets whose first answer has begun: for each, the members that no part of it has named. They are removed
// if the answer ends without them.
type resolver struct {
	missing map[cache.Key]map[string]struct{}
}

// resolve adds to updates the removals that follow from them. The caller holds mu.
func (f *Feed) resolve(updates []cache.Update) {
	for i := range updates {
		u := &updates[i]
		cloned := false
		for j := range u.Sets {
			k, set := cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: u.Sets[j].Name}, u.Sets[j]
			if set.Err != nil {
				continue
			}
			gone := f.removedBy(k, &set)
			if set.Extent == cache.Some {
				continue
			}
			if !cloned {
				u.Sets, cloned = slices.Clone(u.Sets), true // the slice belongs to the source
			}
			if set.Explicit = true; len(gone) > 0 {
				set.Changes = append(gone, set.Changes...)
			}
			u.Sets[j] = set
		}
	}
}

// removedBy returns the members that an update removes without naming them. The caller holds mu.
func (f *Feed) removedBy(k cache.Key, u *cache.SetUpdate) (gone []cache.Change) {
	missing := f.resolver.missing[k]
	if u.Extent.Full() {
		missing = f.members(k)
	}
	if len(missing) > 0 {
		for i := range u.Changes {
			delete(missing, u.Changes[i].Name)
		}
	}
	switch u.Extent {
	case cache.Begins:
		if f.resolver.missing == nil {
			f.resolver.missing = map[cache.Key]map[string]struct{}{}
		}
		f.resolver.missing[k] = missing
	case cache.Whole, cache.Ends:
		delete(f.resolver.missing, k)
		for _, name := range slices.Sorted(maps.Keys(missing)) {
			gone = append(gone, cache.Change{Name: name, Gone: true})
		}
	case cache.Some:
	}
	return gone
}

// members returns the members that a set has, as far as clients have them or will: those in the cache, those that are
// rolled out, and those that are stored and may be served. The caller holds mu.
func (f *Feed) members(k cache.Key) map[string]struct{} {
	all := map[string]struct{}{}
	add := func(name string, _ *cache.Resource) { all[name] = struct{}{} }
	f.Cache.Contents(k, add)
	if f.Rollout != nil {
		f.Rollouts.Added(k, func(name string) { all[name] = struct{}{} })
	}
	if f.Guard.Stored != nil {
		f.Guard.Stored(k, add)
	}
	return all
}
