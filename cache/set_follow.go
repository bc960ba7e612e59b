package cache

import "strings"

// What is needed of a set by who goes from one set to another that is to take its
// place, because some of its members are redirects.

// former is what a member was before it became a redirect: until it is known where
// that leads, it is what there is to show.
type former struct {
	resource *Resource
	seq      uint64 // of its last change
}

// remember notes what the member of that key is that is now to be r, nil if it goes.
func (s *Set) remember(key string, m member, r *Resource) {
	switch {
	case r == nil || r.redirect == "":
		delete(s.was, key)
	case m.present() && m.resource.redirect == "":
		if s.was == nil {
			s.was = map[string]former{}
		}
		s.was[strings.Clone(key)] = former{m.resource, m.seq}
	}
}

// formerly is what a redirect was before; nothing of what is none.
func (s *Set) formerly(m member) former {
	if m.resource.redirect == "" {
		return former{}
	}
	return s.was[s.members.key(m)]
}

// Found says that it is known where the redirect leads that is kept under that name:
// what was there before is not needed any more.
func (s *Set) Found(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.was, key)
}

// Redirects says that some member is a redirect. TP1: "Server redirects".
func (s *Set) Redirects() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.redirects > 0
}

// Held calls yield for each member that w's watcher has been told of by Since, and
// not of its removal, with the version that it has: empty if that is neither the
// present one nor what was there before a redirect. yield is as in Since.
func (s *Set) Held(w *SetWatch, yield func(name, version string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members.all() {
		switch {
		case m.born > w.ahead || m.removed && m.seq <= w.ahead || !m.removed && s.keptUntil(w, m, w.noted):
			// It never heard of it, or has heard of its end.
		case m.seq <= w.seq:
			yield(m.resource.Name(), m.resource.Version())
		default:
			version := ""
			if was := s.formerly(m); was.resource != nil && was.seq <= w.seq {
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
