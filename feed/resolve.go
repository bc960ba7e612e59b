package feed

import (
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// What an answer removes is decided here, and only here. After resolve, an update names every member that it removes, and
// no judge looks at what it does not name.

// resolver has the sets whose first answer has begun.
type resolver struct {
	begun map[cache.Key]*begun
}

// begun is a first answer that may not be complete.
type begun struct {
	// missing are the members that no part of the answer has named. They are removed if it ends without them.
	missing map[string]struct{}
	// claimed are the claims that nothing has taken yet, and who had them when the answer began. What takes one proves that
	// its former owner is gone.
	claimed map[uint64][]string
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
			if set.Extent == cache.Some && len(gone) == 0 {
				continue
			}
			if !cloned {
				u.Sets, cloned = slices.Clone(u.Sets), true // the slice belongs to the source
			}
			if set.Explicit = set.Extent != cache.Some; len(gone) > 0 {
				set.Changes = append(gone, set.Changes...)
			}
			u.Sets[j] = set
		}
	}
}

// removedBy returns the members that an update removes without naming them. The caller holds mu.
func (f *Feed) removedBy(k cache.Key, u *cache.SetUpdate) (gone []cache.Change) {
	of := f.resolver.begun[k]
	if u.Extent.Full() {
		of = f.members(k, u.Extent == cache.Begins)
		f.ttls.forget(k) // the answer says them again
	}
	if of == nil {
		return nil
	}
	if len(of.missing) > 0 {
		for i := range u.Changes {
			delete(of.missing, u.Changes[i].Name)
		}
	}
	switch u.Extent {
	case cache.Begins:
		if f.resolver.begun == nil {
			f.resolver.begun = map[cache.Key]*begun{}
		}
		f.resolver.begun[k] = of
		return of.replacedBy(u)
	case cache.Whole, cache.Ends:
		delete(f.resolver.begun, k)
		return removals(of.missing)
	case cache.Some:
		return of.replacedBy(u)
	}
	return nil
}

// replacedBy returns the missing members whose claims an update takes. They are not missing any more.
func (b *begun) replacedBy(u *cache.SetUpdate) []cache.Change {
	if len(b.claimed) == 0 || len(b.missing) == 0 {
		return nil
	}
	replaced := map[string]struct{}{}
	for i := range u.Changes {
		r := u.Changes[i].Resource
		if r == nil {
			continue
		}
		for _, claim := range r.Claims() {
			for _, name := range b.claimed[claim] {
				if _, is := b.missing[name]; is {
					delete(b.missing, name)
					replaced[name] = struct{}{}
				}
			}
			delete(b.claimed, claim)
		}
	}
	return removals(replaced)
}

// removals are the changes that remove members, sorted.
func removals(names map[string]struct{}) (gone []cache.Change) {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		gone = append(gone, cache.Change{Name: name, Gone: true})
	}
	return gone
}

// members returns the members that a set has, as far as clients have them or will: those in the cache, those that are
// rolled out, and those that are stored and may be served. withClaims: their claims matter. The caller holds mu.
func (f *Feed) members(k cache.Key, withClaims bool) *begun {
	all := &begun{missing: map[string]struct{}{}}
	withClaims = withClaims && cache.HasClaims(k.TypeURL)
	owners := map[string]*cache.Resource{} // read later: nobody can use the set during the loop
	add := func(name string, r *cache.Resource) {
		if all.missing[name] = struct{}{}; withClaims && r != nil {
			owners[name] = r
		}
	}
	f.Cache.Contents(k, add)
	if f.Rollout != nil {
		f.Rollouts.Added(k, func(name string) { all.missing[name] = struct{}{} })
	}
	if f.Guard.Stored != nil {
		f.Guard.Stored(k, add)
	}
	for name, r := range owners {
		for _, claim := range r.Claims() {
			if all.claimed == nil {
				all.claimed = map[uint64][]string{}
			}
			all.claimed[claim] = append(all.claimed[claim], name)
		}
	}
	return all
}
