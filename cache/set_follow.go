package cache

import "strings"

// What is needed of a set by who goes from one set to another that is to take its
// place, because some of its members are redirects.

// former is what a member was before it became a redirect: until it is known where
// that leads, it is what there is to show.
type previous struct {
	resource *Resource
	seq      uint64 // of its last change
}

// setPrevious stores a member's resource if r, which replaces it, is a redirect. r is nil if
// the member is removed.
func (s *Set) setPrevious(key string, m member, r *Resource) {
	switch {
	case r == nil || r.redirect == "":
		delete(s.previousOf, key)
	case m.present() && m.resource.redirect == "":
		if s.previousOf == nil {
			s.previousOf = map[string]previous{}
		}
		s.previousOf[strings.Clone(key)] = previous{m.resource, m.seq}
	}
}

// previous returns what a member was before it became a redirect. It is empty for other
// members.
func (s *Set) previous(m member) previous {
	if m.resource.redirect == "" {
		return previous{}
	}
	return s.previousOf[s.members.key(m)]
}

// DropPrevious forgets what was under a name before it became a redirect: the redirect's
// target is known.
func (s *Set) DropPrevious(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.previousOf, key)
}

// Redirects says that some member is a redirect. TP1: "Server redirects".
func (s *Set) Redirects() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.redirects > 0
}

// SentTo calls yield for each member that Since has given to w's watcher, without its removal,
// and with the version that the watcher has. The version is empty if it is neither the current
// one nor the one before a redirect. yield is as in Since.
func (s *Set) SentTo(w *SetWatch, yield func(name, version string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members.all() {
		switch {
		case m.added > w.seenUpTo || m.removed && m.seq <= w.seenUpTo || !m.removed && s.withheldAt(w, m, w.noteSeq):
			// It never heard of it, or has heard of its end.
		case m.seq <= w.seq:
			yield(m.resource.Name(), m.resource.Version())
		default:
			version := ""
			if was := s.previous(m); was.resource != nil && was.seq <= w.seq {
				version = was.resource.Version()
			}
			yield(m.resource.Name(), version)
		}
	}
}

// Names calls yield for the name of each member. yield is as in Since.
func (s *Set) Names(yield func(name string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members.all() {
		if !m.removed {
			yield(m.resource.Name())
		}
	}
}
