package directory

// The resources of the authority, by name.

import (
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// state has the resources of the authority at one moment. It is immutable.
type state struct {
	resources map[string]map[string]*cache.Resource // by type URL and key
	globs     map[string]map[string][]string        // keys of members, by type URL and glob
	// missing is the error of a name that is not there. It is nil if such a name
	// does not exist.
	missing *cache.Error
	// unread is set if the directory could never be read: then sets are not known either.
	unread bool
}

func newState(c *contents, items []item) *state {
	s := &state{resources: map[string]map[string]*cache.Resource{}, globs: map[string]map[string][]string{}}
	for _, it := range items {
		t := s.resources[it.typeURL]
		if t == nil {
			t = map[string]*cache.Resource{}
			s.resources[it.typeURL] = t
		}
		t[it.key] = it.resource
		if glob, ok := urn.GlobOf(it.key); ok {
			if s.globs[it.typeURL] == nil {
				s.globs[it.typeURL] = map[string][]string{}
			}
			s.globs[it.typeURL][glob] = append(s.globs[it.typeURL][glob], it.key)
		}
	}
	if !c.read {
		s.unread = true
		s.missing = &cache.Error{Code: codes.Unavailable, Message: "the authority's directory could not be read yet"}
		return s
	}
	for _, f := range c.files {
		if !f.good {
			s.missing = &cache.Error{Code: codes.Unavailable, Message: "the authority's file " + f.name + " could not be read yet"}
			break
		}
	}
	return s
}

// change returns the state of one name.
func (s *state) change(typeURL, key string) cache.Change {
	c := cache.Change{Name: key, Resource: s.resources[typeURL][key], Answer: cache.FirstAnswer}
	if c.Resource == nil {
		c.Err = s.missing
	}
	return c
}

// set returns all members of a set: for the wildcard the resources with old-style
// names, for a glob those in its directory.
// xDS: "How the client specifies what resources to return". TP1: "Glob".
func (s *state) set(typeURL, name string) cache.SetUpdate {
	u := cache.SetUpdate{Name: name, Extent: cache.Whole, Answer: cache.FirstAnswer}
	if s.unread {
		u.Err = s.missing
		return u
	}
	if name != cache.Wildcard {
		for _, key := range s.globs[typeURL][name] {
			u.Changes = append(u.Changes, cache.Change{Name: key, Resource: s.resources[typeURL][key]})
		}
		return u
	}
	for key, r := range s.resources[typeURL] {
		if setOf(key) == cache.Wildcard {
			u.Changes = append(u.Changes, cache.Change{Name: key, Resource: r})
		}
	}
	return u
}

// setOf returns the set of a resource: the wildcard, or the glob of its directory. It is empty if there
// is none.
// TP1: resources with xdstp names are only sent for their name or a glob.
func setOf(key string) string {
	if !urn.IsXdstp(key) {
		return cache.Wildcard
	}
	glob, _ := urn.GlobOf(key)
	return glob
}

// difference returns the names, by type URL, whose resource has changed.
func (s *state) difference(before *state) map[string][]string {
	changed := map[string][]string{}
	for typeURL, t := range s.resources {
		for key, r := range t {
			if !same(before.resources[typeURL][key], r) {
				changed[typeURL] = append(changed[typeURL], key)
			}
		}
	}
	for typeURL, t := range before.resources {
		for key := range t {
			if s.resources[typeURL][key] == nil {
				changed[typeURL] = append(changed[typeURL], key)
			}
		}
	}
	return changed
}

func same(a, b *cache.Resource) bool {
	return a == b || a != nil && b != nil &&
		a.Hash() == b.Hash() && a.Version() == b.Version() && a.Name() == b.Name()
}
