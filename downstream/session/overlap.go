package session

import (
	"iter"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// Overlap: when several of a client's subscriptions cover a name, one of them owns the name and sends its resource. A set
// covers a name only if the client requests both in the same way: by name, or by locators with the same dynamic
// parameters. In delta the owner is the first of these (ownsName in delta_reviews.go, owner and covering here):
//
//   - the subscription to the name, if its own state is known to be present,
//   - the glob of the name's directory, or else the first view (a view is a glob whose members may have names from
//     anywhere),
//   - the wildcard,
//   - the other views.
//
// If the owner has no resource, the next one in this order sends its own. The name is gone when none of them has a
// resource: sendMember (delta_sets.go) decides what the loss of a member means, and stateOf (delta_reviews.go) what the
// loss of the name itself means.
//
// In SotW a client with a set gets full states. There the member of the glob or the wildcard goes before the name's own
// resource (inFull in sotw_sets.go), except that a name that is present by itself goes before the member of a view.
//
// A wildcard does not replace an absent xdstp name, even if it has a resource of that name: the wildcard belongs to the
// client's Node, and the xdstp name to its authority.
//
// The index from a name to its owner is computed and not stored: a name's directory leads to its glob, and a client has few
// views. So a client that subscribes to names only, or to one set, pays nothing for it.

// hasSets reports whether there is a wildcard or a glob.
func (x *setIndex) hasSets() bool { return x.wild != nil || len(x.byGlob) > 0 }

// sets iterates over the wildcard and the globs.
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

// addGlob adds a new glob.
func (x *setIndex) addGlob(set *setSub) {
	put(&x.byGlob, set.ref.key(), set)
	if set.set.Key().Scope.IsView() {
		x.views = append(x.views, set)
	}
}

// removeGlob removes a glob whose last spelling was unsubscribed.
func (x *setIndex) removeGlob(set *setSub) {
	delete(x.byGlob, set.ref.key())
	x.views = slices.DeleteFunc(x.views, func(v *setSub) bool { return v == set })
}

// globOf returns the glob of a name's directory, nil if there is none.
func (x *setIndex) globOf(a resourceRef) *setSub {
	if len(x.byGlob) == 0 || !urn.IsXdstp(a.name) {
		return nil
	}
	return x.byGlob[a.of(globOf(memberKey(a.name))).key()]
}

// wildOf returns the wildcard if it covers a name, otherwise nil. A refused wildcard covers no name.
func (x *setIndex) wildOf(a resourceRef) *setSub {
	if x.wild == nil || x.wild.set == nil || !x.wild.covers(a) {
		return nil
	}
	return x.wild
}

// covers reports whether a wildcard or a view may have a name, because the client requests both in the same way.
func (s *setSub) covers(a resourceRef) bool { return s.ref.of(a.name) == a }

func (x *setIndex) isView(set *setSub) bool { return slices.Contains(x.views, set) }

// owner returns the glob or view that owns a name, nil if none covers it. It considers neither the wildcard nor the
// subscription to the name.
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

// ownedByAnother reports whether a set is a view and another glob or view owns a name.
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

// standIn returns the set that provides a name whose own entry has no resource, nil if there is none.
func (x *setIndex) standIn(a resourceRef) *setSub {
	if set := x.globOf(a); set != nil || urn.IsXdstp(a.name) {
		return set
	}
	return x.wildOf(a)
}

// sharesMembers reports whether another glob may have members of a glob.
func (x *setIndex) sharesMembers(set *setSub) bool {
	return len(x.views) > 1 || len(x.views) == 1 && (!x.isView(set) || len(x.byGlob) > 1)
}

// overlaps reports whether another set may have members of a set.
func (x *setIndex) overlaps(set *setSub) bool {
	if !set.glob() {
		return len(x.byGlob) > 0
	}
	return x.sharesMembers(set) || x.wildOf(set.ref.of(cache.Wildcard)) != nil
}

// present reports whether the members of a set are known.
func present(set *setSub) bool {
	status, _ := set.status()
	return status == cache.Present
}

// first returns the member with that key of the first set that has one, and that set. If no set has one, it returns in
// waits a set that may still get one.
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
