package session

import (
	"maps"
	"slices"
)

// spellings are the names by which a client requests one glob: usually one, but a client may spell it in as many ways
// as it likes.
type spellings struct {
	one  string
	more map[string]struct{} // all of them, if there are several
}

func (s *spellings) add(name string) {
	switch {
	case s.more != nil:
		s.more[name] = struct{}{}
	case s.one == "" || s.one == name:
		s.one = name
	default:
		s.more = map[string]struct{}{s.one: {}, name: {}}
	}
}

func (s *spellings) remove(name string) {
	if delete(s.more, name); s.one == name {
		s.one = ""
	}
	if s.more != nil && len(s.more) <= 1 {
		s.one = ""
		for s.one = range s.more {
		}
		s.more = nil
	}
}

func (s *spellings) none() bool { return s.more == nil && s.one == "" }

// all returns the spellings in order.
func (s *spellings) all() []string {
	if s.more != nil {
		return slices.Sorted(maps.Keys(s.more))
	}
	if s.one == "" {
		return nil
	}
	return []string{s.one}
}
