package cache

import (
	"strings"

	"github.com/xds-relay/xds-relay/cache/internal/members"
)

// setPrevious stores a member's resource in previousOf if r, which replaces it, is a redirect. r is
// nil if the member is removed.
func (s *Set) setPrevious(key string, m members.Member, r *Resource) {
	switch {
	case r == nil || r.Redirect() == "":
		delete(s.previousOf, key)
	case m.Present() && m.Resource.Redirect() == "":
		if s.previousOf == nil {
			s.previousOf = map[string]previous{}
		}
		s.previousOf[strings.Clone(key)] = previous{m.Resource, m.Seq}
	}
}

// previous returns a member's resource before it became a redirect. It is empty for members that
// are not redirects.
func (s *Set) previous(m members.Member) previous {
	if m.Resource.Redirect() == "" {
		return previous{}
	}
	return s.previousOf[s.members.Key(m)]
}

// DropPrevious forgets a member's resource before it became a redirect. It is called when the
// redirect's target is known.
func (s *Set) DropPrevious(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.previousOf, key)
}

// Redirects reports whether any member is a redirect. TP1: "Server redirects".
func (s *Set) Redirects() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.redirects > 0
}
