package upstream

import (
	"iter"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// xDS: TP2. Clients choose dynamic parameters as they like, so there may be many sets of
// subscriptions on a stream. Which of them have to do with a name is known: nothing that is
// said of one name, or asked about it, looks at all of them.

// interests are the sets by what they have to do with: names and globs that they have, the
// names of resources that answer to others of theirs, and the wildcard. It is kept while
// there are several sets, and until the stream ends.
type interests map[string]map[*subscriptions]struct{}

// note notes whether a set has to do with a name.
func (in interests) note(s *subscriptions, name string) {
	of := in[name]
	if !s.concernedBy(name) {
		if delete(of, s); len(of) == 0 {
			delete(in, name)
		}
		return
	}
	if of == nil {
		of = map[*subscriptions]struct{}{}
		in[name] = of
	}
	of[s] = struct{}{}
}

func (s *subscriptions) concernedBy(name string) bool {
	return s.get(name) != nil || len(s.claims.of[name]) > 0
}

// note is for when what the set has to do with a name may have become another.
func (s *subscriptions) note(name string) {
	if s.interests != nil {
		s.interests.note(s, name)
	}
}

// share begins to note what each set has to do with, if there are several.
func (s *paramSets) share() {
	if len(s.list) < 2 {
		return
	}
	if s.interests == nil {
		s.interests = interests{}
	}
	for _, subs := range s.list {
		if subs.interests != nil {
			continue
		}
		subs.interests = s.interests
		for sub := range subs.all() {
			subs.note(sub.name)
		}
		for name := range subs.claims.of {
			subs.note(name)
		}
	}
}

// unshare forgets that.
func (s *paramSets) unshare() {
	s.interests = nil
	for _, subs := range s.list {
		subs.interests = nil
	}
}

// interested returns the places in the list of the sets that something said of a name, with
// these aliases, may be about, in order.
func (s *paramSets) interested(key string, aliases ...string) []int {
	var places []int
	add := func(name string) {
		for subs := range s.interests[name] {
			places = append(places, subs.place)
		}
	}
	add(key)
	add(cache.Wildcard)
	for _, alias := range aliases {
		add(canonical(alias))
	}
	if glob, ok := urn.GlobOf(key); ok {
		add(glob)
	}
	slices.Sort(places)
	return slices.Compact(places)
}

// among yields the sets that interested returns the places of, in no order, and perhaps
// twice. Places need not be known.
func (s *paramSets) among(key string) iter.Seq[*subscriptions] {
	if s.interests == nil {
		return slices.Values(s.list)
	}
	names := []string{key, cache.Wildcard}
	if glob, ok := urn.GlobOf(key); ok {
		names = append(names, glob)
	}
	return func(yield func(*subscriptions) bool) {
		for _, name := range names {
			for subs := range s.interests[name] {
				if !yield(subs) {
					return
				}
			}
		}
	}
}
