package cache

import "github.com/xds-relay/xds-relay/cache/internal/members"

// Members that must not be cached (Resource.DoNotCache): a watcher that comes later does not
// receive them until the origin sends them again. discovery.proto: cache_control.

// Withholds reports whether any member is withheld from w's watcher: it must not be cached
// (Resource.DoNotCache), came before the watcher, and has not come again since.
func (s *Set) Withholds(w *SetWatch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.withholds(w)
}

// withholds is Withholds for callers that hold mu.
func (s *Set) withholds(w *SetWatch) bool {
	if s.withheld == 0 || w.began == 0 {
		return false
	}
	for m := range s.members.All() {
		if m.Seq > w.began {
			break
		}
		if !m.Removed && s.withheldFrom(w, m) {
			return true
		}
	}
	return false
}

// MemberFor is like Member, but also returns nil if the member is withheld from w's watcher.
func (s *Set) MemberFor(w *SetWatch, key string) *Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.members.Get(key); m.Present() && !s.withheldFrom(w, m) {
		return m.Resource
	}
	return nil
}

// withheldFrom reports whether a member is withheld from w's watcher.
func (s *Set) withheldFrom(w *SetWatch, m members.Member) bool { return s.withheldAt(w, m, s.seq) }

// withheldAt is like withheldFrom, at the time when seq was the newest change.
func (s *Set) withheldAt(w *SetWatch, m members.Member, seq uint64) bool {
	if !m.Resource.DoNotCache() || m.Seq > w.began {
		return false
	}
	n := s.notes.byKey[s.members.Key(m)]
	return n == nil || n.arrival <= w.began || n.arrival > seq
}

// isNewArrival reports whether the arrival of an unchanged member is new for w's watcher: the
// member was withheld from it, or the watcher wants every arrival.
func (s *Set) isNewArrival(w *SetWatch, m members.Member, n *note, begin uint64) bool {
	if m.Seq <= begin && w.EachArrival {
		return true
	}
	return m.Seq <= w.began && n.arrival > w.began && (m.Seq <= begin || n.arrival > w.batchEnd)
}

// arrivedAgain reports whether a member that was withheld from w's watcher has come again since
// the watcher last read.
func (s *Set) arrivedAgain(w *SetWatch, n *note) bool {
	if n.arrival <= max(w.began, w.noteSeq) {
		return false
	}
	m := s.members.Get(n.key)
	return m.Present() && m.Seq <= w.began
}
