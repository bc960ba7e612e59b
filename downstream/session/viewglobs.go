package session

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// viewGlobs are a client's globs that are views: their members may have names from
// anywhere, so that a name does not say which of them it is in.
type viewGlobs []*setSub

func (v *viewGlobs) add(set *setSub) {
	switch set.set.Key().Scope.Derived {
	case "", cache.Resolved, cache.Passed:
	default:
		*v = append(*v, set)
	}
}

func (v *viewGlobs) drop(set *setSub) {
	if i := slices.Index(*v, set); i >= 0 {
		*v = slices.Delete(*v, i, i+1)
	}
}

func (v viewGlobs) has(set *setSub) bool { return slices.Contains(v, set) }

// of are those that may have what is asked for in that way.
func (v viewGlobs) of(a asked) (sets []*setSub) {
	for _, set := range v {
		if set.asked.of(a.name) == a {
			sets = append(sets, set)
		}
	}
	return sets
}

// alsoIn says that another glob may have the members of this one.
func (s *subscriptions) alsoIn(set *setSub) bool {
	return len(s.views) > 1 || len(s.views) == 1 && (!s.views.has(set) || len(s.byGlob) > 1)
}

// teller is the glob that tells by itself what it has under a name, nil if there is none.
// What others have, too, is told if it has not.
func (s *subscriptions) teller(a asked) *setSub {
	if set := s.globOf(a); set != nil {
		return set
	}
	for _, set := range s.views {
		if set.asked.of(a.name) == a {
			return set
		}
	}
	return nil
}

// yields says that a glob is a view of which another glob tells what they both have.
func (s *subscriptions) yields(set *setSub, a asked) bool {
	return s.views.has(set) && s.teller(a) != set
}

// toldKeys are the keys of what a full state has, by the way in which it is asked for.
type toldKeys map[asked]map[string]bool

// toldByName are those of the names that tell by themselves; nil if there are no views,
// which leave them out.
func (s *SotW) toldByName() toldKeys {
	if len(s.views) == 0 {
		return nil
	}
	told := toldKeys{}
	for sub := range s.named.all() {
		if sub.entry() != nil && (sub.state().Status == cache.Present || s.withheld && removed(sub, sub.state())) {
			told.add(sub.asks(), sub.memberKey())
		}
	}
	return told
}

func (t toldKeys) add(a asked, key string) {
	way := a.of("")
	if t[way] == nil {
		t[way] = map[string]bool{}
	}
	t[way][key] = true
}

// noting notes what a glob has as told, also as elsewhere than in the wildcard, and says
// what it leaves out, if it is a view, as told already: a resource is in a response once.
func (s *SotW) noting(told toldKeys, set *setSub, elsewhere map[string]bool) func(string) bool {
	view, underWild := s.views.has(set), s.wildOf(set.asked.of(cache.Wildcard)) != nil
	if !s.alsoIn(set) && !underWild && len(told) == 0 {
		return nil
	}
	return func(key string) bool {
		if view && told[set.asked.of("")][key] {
			return true
		}
		told.add(set.asked, key)
		if underWild {
			elsewhere[key] = true
		}
		return false
	}
}
