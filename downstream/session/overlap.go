package session

import (
	"iter"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// Overlap: a name that several of a client's subscriptions cover is sent once, by the one that owns
// it. A set covers only names that the client asks for in the same way (by name, or by a locator
// with the same dynamic parameters). Owners, in this order:
//
//   - the subscription to the name, if its own state is known to be present,
//   - the glob that the name is in, or else the first view (a glob whose members may have names from
//     anywhere),
//   - the wildcard,
//   - the other views.
//
// If the owner has no resource, the next in this order sends its own; the name is gone when none
// has it: in delta sendMember (delta_sets.go) decides what the loss of a member means, and stateOf
// (delta_reviews.go) what the loss of the name itself does; in SotW sotw_sets.go.
//
// The wildcard belongs to the client's Node, and an xdstp name to its authority: an absent xdstp name
// is not given by a wildcard that has a resource of that name.
//
// Nothing is stored for each name. Which sets may have a name follows from its directory, so that
// clients with names only, or with one set, pay nothing.

// hasSets says that there is a wildcard or a glob.
func (x *setIndex) hasSets() bool { return x.wild != nil || len(x.byGlob) > 0 }

// sets yields the wildcard and the globs.
func (x *setIndex) sets() iter.Seq[*setSub] {
	return func(yield func(*setSub) bool) {
		if x.wild != nil && !yield(x.wild) {
			return
		}
		for _, set := range x.byGlob {
			if !yield(set) {
				return
			}
		}
	}
}

// addGlob adds a glob that is new.
func (x *setIndex) addGlob(set *setSub) {
	put(&x.byGlob, set.ref.key(), set)
	switch set.set.Key().Scope.Derived {
	case "", cache.Resolved, cache.Passed:
	default:
		x.views = append(x.views, set)
	}
}

// removeGlob removes a glob that has no spelling any more.
func (x *setIndex) removeGlob(set *setSub) {
	delete(x.byGlob, set.ref.key())
	x.views = slices.DeleteFunc(x.views, func(v *setSub) bool { return v == set })
}

// globOf returns the glob that a name is in, nil if there is none.
func (x *setIndex) globOf(a resourceRef) *setSub {
	if len(x.byGlob) == 0 || !urn.IsXdstp(a.name) {
		return nil
	}
	return x.byGlob[a.of(globOf(memberKey(a.name))).key()]
}

// wildOf returns the wildcard if it covers a name. One that is refused covers none.
func (x *setIndex) wildOf(a resourceRef) *setSub {
	if x.wild == nil || x.wild.set == nil || !x.wild.covers(a) {
		return nil
	}
	return x.wild
}

// covers says that a wildcard or a view may have a name: it is requested in the same way.
func (s *setSub) covers(a resourceRef) bool { return s.ref.of(a.name) == a }

func (x *setIndex) isView(set *setSub) bool { return slices.Contains(x.views, set) }

// owner returns the glob or view that owns a name among the globs, nil if none covers it.
func (x *setIndex) owner(a resourceRef) *setSub {
	if set := x.globOf(a); set != nil {
		return set
	}
	for _, set := range x.views {
		if set.covers(a) {
			return set
		}
	}
	return nil
}

// ownedByAnother says that a set is a view and that another glob owns a name.
func (x *setIndex) ownedByAnother(set *setSub, a resourceRef) bool {
	return x.isView(set) && x.owner(a) != set
}

// covering returns the sets that may have a name, in the order in which they own it.
func (x *setIndex) covering(a resourceRef) (sets []*setSub) {
	owner := x.owner(a)
	if owner != nil {
		sets = append(sets, owner)
	}
	if wild := x.wildOf(a); wild != nil {
		sets = append(sets, wild)
	}
	for _, set := range x.views {
		if set != owner && set.covers(a) {
			sets = append(sets, set)
		}
	}
	return sets
}

// standIn returns the set that gives a name for which there is nothing itself, nil if there is none.
func (x *setIndex) standIn(a resourceRef) *setSub {
	if set := x.globOf(a); set != nil || urn.IsXdstp(a.name) {
		return set
	}
	return x.wildOf(a)
}

// sharesMembers says that another glob may have members of a glob.
func (x *setIndex) sharesMembers(set *setSub) bool {
	return len(x.views) > 1 || len(x.views) == 1 && (!x.isView(set) || len(x.byGlob) > 1)
}

// overlaps says that another set may have members of a set.
func (x *setIndex) overlaps(set *setSub) bool {
	if !set.glob() {
		return len(x.byGlob) > 0
	}
	return x.sharesMembers(set) || x.wildOf(set.ref.of(cache.Wildcard)) != nil
}

// present says that it is known what is in a set.
func present(set *setSub) bool {
	status, _ := set.status()
	return status == cache.Present
}

// first returns the first of some sets that has a member under that key; or else one
// of which it is not known whether it has.
func first(key string, sets ...*setSub) (res *cache.Resource, by, waits *setSub) {
	for _, set := range sets {
		if set == nil {
			continue
		}
		if !present(set) {
			waits = set
		} else if res = set.set.Member(key); res != nil {
			return res, set, nil
		} else if set.set.Awaits(key) {
			waits = set
		}
	}
	return nil, nil, waits
}
