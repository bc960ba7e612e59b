package cache

import "strings"

// A delta control plane may cut its first answer for a set into several responses, and does
// not say which is the last. Until the source knows that it has all of it, a missing member
// is not a removed one.

// firstAnswer is what a set knows of such an answer while it is incomplete.
type firstAnswer struct {
	// missing are the keys of members from before that have not come yet. They go when
	// the answer is complete.
	missing map[string]struct{}
	// removed are the keys that the origin has removed: clients may hold them, whether or
	// not the set had a member.
	removed map[string]bool
}

// maxRemoved bounds the names that are kept in firstAnswer.removed. Clients are sent further
// removals when the answer is complete.
const maxRemoved = 10_000

// beginFirst takes note of a full update that is incomplete. gone are the keys of the members
// that are not in it.
func (s *Set) beginFirst(gone []string) {
	s.first = &firstAnswer{missing: make(map[string]struct{}, len(gone))}
	for _, key := range gone {
		s.first.missing[key] = struct{}{}
	}
}

// completes says that an update ends an incomplete first answer.
func (u *SetUpdate) completes() bool { return u.Complete || u.Full && !u.Incomplete }

// note notes what has come under a key, nil if that is removed, and says whether that is a
// removal which is news.
func (f *firstAnswer) note(key string, r *Resource) (removed bool) {
	if f == nil {
		return false
	}
	f.came(key)
	if r != nil {
		delete(f.removed, key)
	}
	if r != nil || f.removed[key] || len(f.removed) == maxRemoved {
		return false
	}
	if f.removed == nil {
		f.removed = map[string]bool{}
	}
	f.removed[strings.Clone(key)] = true
	return true
}

// came notes that something has come under a key.
func (f *firstAnswer) came(key string) {
	if f != nil {
		delete(f.missing, key)
	}
}

// endFirst returns the keys of the members that were not in the answer, which is complete
// now.
func (s *Set) endFirst() map[string]struct{} {
	if s.first == nil {
		return nil
	}
	missing := s.first.missing
	s.first = nil
	return missing
}

// Incomplete says that a member that is missing may be in what follows.
func (s *Set) Incomplete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first != nil
}

// AwaitsAll reports whether every name that is not a member may still come in the rest of the
// first answer.
func (s *Set) AwaitsAll() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first != nil && len(s.first.removed) == 0
}

// Awaits reports whether a name is not a member and may still come in the rest of the first
// answer.
func (s *Set) Awaits(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == nil || s.first.removed[key] {
		return false
	}
	m := s.members.Get(key)
	return !m.Present()
}
