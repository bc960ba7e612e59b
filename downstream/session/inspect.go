package session

import (
	"iter"

	"github.com/xds-relay/xds-relay/cache"
)

// Status is what an operator sees of one client's subscriptions of one type.
type Status struct {
	TypeURL       string
	Subscriptions int
	LastRejection string // the client's words, empty if it has rejected nothing yet
	// Rejection is the last rejection that still stands, nil if there is none.
	Rejection *Rejection
	// Refused is the number of names that are refused now.
	Refused int
}

// Describe returns what an operator sees of the client's subscriptions.
func (s *subscriptions) Describe() Status {
	t := Status{TypeURL: s.typeURL, Subscriptions: s.Subscribed(), LastRejection: s.nacks.words(), Rejection: s.nacks.standing(), Refused: s.refused()}
	if s.wild != nil {
		t.Subscriptions++
	}
	return t
}

// Watched iterates over the topics that the client watches by itself.
func (s *subscriptions) Watched() iter.Seq[cache.Key] {
	return func(yield func(cache.Key) bool) {
		for set := range s.sets() {
			if set.set != nil && !yield(set.set.Key()) {
				return
			}
		}
		for sub := range s.named.own() {
			if e := sub.entry(); e != nil && !yield(e.Key()) {
				return
			}
		}
	}
}

// Uses reports whether the client watches a topic that in selects.
func (s *subscriptions) Uses(in func(cache.Key) bool) bool {
	for k := range s.Watched() {
		if in(k) {
			return true
		}
	}
	return s.named.shared != nil && in(s.named.shared.group.First().Key())
}

// Views iterates over the topics of views that the client watches.
func (s *subscriptions) Views() iter.Seq[cache.Key] {
	return func(yield func(cache.Key) bool) {
		for set := range s.sets() {
			if set.set != nil && set.set.Key().Scope.IsView() && !yield(set.set.Key()) {
				return
			}
		}
	}
}

// Group returns the group in which the client watches other names, nil if there is none.
func (s *subscriptions) Group() WatchGroup {
	if m := s.named.shared; m != nil {
		return m.group
	}
	return nil
}

// Names iterates over the client's subscriptions, as it has requested them: names, globs and the wildcard. The caller
// holds the stream, and need not hold the cache.
func (s *subscriptions) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		if s.wild != nil && !yield(s.wild.ref.name) {
			return
		}
		for _, set := range s.byGlob {
			for _, name := range set.spelled.all() {
				if !yield(name) {
					return
				}
			}
		}
		for sub := range s.named.own() {
			if !yield(sub.ref().name) {
				return
			}
		}
		m := s.named.shared
		if m == nil {
			return
		}
		for i, name := range m.group.List().All() {
			if m.has(uint32(i)) && !yield(name) { //nolint:gosec // a request has fewer
				return
			}
		}
	}
}

// Inspection is what the tests of the stream need to know about a session.
type Inspection struct {
	Names    map[string]bool // by their keys, including globs
	Topics   []cache.Key     // those that it watches
	Wildcard bool
	Shares   bool // the client is in a group
	// SotW: OldWildcard: it has a wildcard of the old rule. Full: responses are full states. LeftIn: the last one had
	// something in it that is removed.
	OldWildcard, Full, LeftIn bool
}

// Inspect is for tests.
func (s *subscriptions) Inspect() Inspection {
	is := Inspection{Names: map[string]bool{}, Wildcard: s.wild != nil, Shares: s.named.shared != nil}
	for sub := range s.named.own() {
		is.Names[sub.key()] = true
		if sub.entry() != nil {
			is.Topics = append(is.Topics, sub.entry().Key())
		}
	}
	if m := s.named.shared; m != nil {
		is.Topics = append(is.Topics, m.first().Key()) // for all
		for i, name := range m.group.List().All() {
			if m.has(uint32(i)) { //nolint:gosec // a request has fewer
				is.Names[name] = true
			}
		}
	}
	for key := range s.globs {
		is.Names[key] = true
	}
	for set := range s.sets() {
		if set.set != nil {
			is.Topics = append(is.Topics, set.set.Key())
		}
	}
	return is
}

// Inspect is for tests.
func (s *SotW) Inspect() Inspection {
	is := s.subscriptions.Inspect()
	is.OldWildcard, is.Full, is.LeftIn = s.legacyWildcard, s.full(), s.leftIn
	return is
}

// refused returns how many of the names and wildcards that the client subscribes to the relay refuses.
func (s *subscriptions) refused() (n int) {
	if t := s.trouble; t != nil {
		n = t.refused + t.deniedOwn
	}
	if s.wild != nil && s.wild.err != nil {
		n++
	}
	return n
}
