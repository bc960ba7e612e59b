package cache

import (
	"slices"
	"strings"
)

// The first answer for a set. A delta control plane may send it in several responses, and does
// not mark the last one. Until the source knows that the answer is complete, a missing member does
// not count as removed.

// maxRemoved bounds firstAnswer.removed. Clients receive further removals when the answer is
// complete.
const maxRemoved = 10_000

// beginFirst begins a first answer. gone are the keys of the members that are missing from its
// first response.
func (s *Set) beginFirst(gone []string) {
	s.first = &firstAnswer{missing: make(map[string]struct{}, len(gone))}
	for _, key := range gone {
		s.first.missing[key] = struct{}{}
	}
}

// note records the resource that has arrived under a key, nil for a removal. It reports whether
// that is a new removal. f may be nil.
func (f *firstAnswer) note(key string, r *Resource) (removed bool) {
	if f == nil {
		return false
	}
	f.arrived(key)
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

// arrived records that the answer has a key. f may be nil.
func (f *firstAnswer) arrived(key string) {
	if f != nil {
		delete(f.missing, key)
	}
}

// endFirst ends the first answer, and returns the keys of the members that were missing from it.
func (s *Set) endFirst() map[string]struct{} {
	if s.first == nil {
		return nil
	}
	missing := s.first.missing
	s.first = nil
	return missing
}

// Answering reports whether more may follow of the first answer for the set, or for a glob of which it is made.
func (s *Set) Answering() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first != nil || slices.ContainsFunc(s.gaps, Gap.awaited)
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

// Awaits reports whether a key is not a member and may still come in the rest of a first
// answer, see Answering, or in the next answer of a set that is behind.
func (s *Set) Awaits(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.members.Get(key); m.Present() {
		return false
	}
	_, unknown := s.unknown[key]
	return unknown || s.first != nil && !s.first.removed[key] || s.inGap(key, Gap.awaited)
}
