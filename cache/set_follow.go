package cache

// What is needed of a set by who goes from one set to another that is to take its
// place, because some of its members are redirects.

// Redirects says that some member is a redirect. TP1: "Server redirects".
func (s *Set) Redirects() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.redirects > 0
}

// Held calls yield for each member that w's watcher has been told of by Since, and
// not of its removal, with the version that it has: empty if that is not the
// present one. yield is as in Since.
func (s *Set) Held(w *SetWatch, yield func(name, version string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members.all() {
		switch {
		case m.born > w.ahead || m.removed && m.seq <= w.ahead || !m.removed && s.kept(w, m):
			// It never heard of it, or has heard of its end.
		case m.seq <= w.seq:
			yield(m.resource.Name(), m.resource.Version())
		default:
			yield(m.resource.Name(), "")
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
