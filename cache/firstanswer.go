package cache

import "strings"

// The first answer for a set. A delta control plane may send it in several responses, and does
// not mark the last. Until the source knows that the answer is complete, a missing member is not
// a removed one.

// maxRemoved bounds firstAnswer.removed. Clients receive further removals when the answer is
// complete.
const maxRemoved = 10_000

// beginFirst begins a first answer. gone are the keys of the members that are not in its first
// response.
func (s *Set) beginFirst(gone []string) {
	s.first = &firstAnswer{missing: make(map[string]struct{}, len(gone))}
	for _, key := range gone {
		s.first.missing[key] = struct{}{}
	}
}

// completes reports whether an update completes the first answer.
func (u *SetUpdate) completes() bool { return u.Complete || u.Full && !u.Incomplete }

// note notes the resource that has come under a key, nil for a removal. It reports whether that
// is a new removal.
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

// came notes that a key is in the answer.
func (f *firstAnswer) came(key string) {
	if f != nil {
		delete(f.missing, key)
	}
}

// endFirst ends the first answer, and returns the keys of the members that were not in it.
func (s *Set) endFirst() map[string]struct{} {
	if s.first == nil {
		return nil
	}
	missing := s.first.missing
	s.first = nil
	return missing
}

// Incomplete reports whether the first answer is incomplete: missing members may still come.
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
