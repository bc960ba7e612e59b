package cache

import (
	"github.com/xds-relay/xds-relay/cache/internal/members"
)

// Set is a topic of many resources: all that a wildcard gives, or a glob
// collection.
//
// Its members are kept in the order of their last change, and a watcher keeps
// one position in that order. So an unchanged member costs nothing when another
// changes, and nothing is stored per member and watcher.
type Set struct {
	topic

	// Guarded by topic.mu.
	status     Status
	err        *Error
	partial    bool // see SetUpdate.Partial
	first      *firstAnswer
	members    members.Members // removed ones too, see sweep
	notes      notes           // what else is new
	present    int             // members that have not been removed
	seq        uint64          // of the newest change, or of the newest note
	removals   []removal
	sweepAt    int // the number of graves at which to sweep
	tombstones members.Tombstones
	sum        uint64 // over the members that are present, see digest
	ttlSum     uint64 // over those of them that have a TTL
	// origin is the version of the origin that this state is of, nil if no single one is
	// known. stated is what that was when the set was told last, and inexact says that
	// there have been several states of it.
	origin  *OriginVersion
	stated  string
	inexact bool
	// bodies are those of this state that somebody asked for.
	bodies   map[Form]*Body
	extended extended
	// withTTL, withheld and redirects count the members that have a TTL, those that
	// are not for newcomers (Resource.DoNotCache), and those that are redirects.
	withTTL, withheld, redirects int
	// was has, by their keys, what members that are redirects were before.
	previousOf map[string]previous

	// planned: the update that is being stored has a plan for the set. It belongs to who
	// stores that.
	planned bool
}

func newSet(of *scopeTopics, k Key, t Tombstones) *Set {
	s := &Set{topic: topic{scope: of, key: k}, sweepAt: minSweep}
	if k.Name != Wildcard {
		s.tombstones.Bounds = members.Bounds(t)
	}
	return s
}

// Key returns what the set is kept under.
func (s *Set) Key() Key { return s.key }

// Status returns the set's status, and the error if it is Failed. A set is
// Present once its members are known, also if there are none.
func (s *Set) Status() (Status, *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status, s.err
}

// HasGaps reports whether the set is Present and incomplete: it is Partial, or a name is not a
// member because of an error of that kind.
func (s *Set) HasGaps(kind func(*Error) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.partial {
		return true
	}
	for key, n := range s.notes.byKey {
		if m := s.members.Get(key); n.err != nil && !m.Present() && kind(n.err) {
			return true
		}
	}
	return false
}

// Partial says that a member that is missing may exist nevertheless.
func (s *Set) Partial() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.partial
}

// Origin returns the version of the origin that the set's state is of, nil if no single one
// is known.
func (s *Set) Origin() *OriginVersion {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.origin
}

// Len returns the number of members.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present
}

// Member returns the member that is kept under that name (as Key.Name is an
// entry's), nil if there is none.
func (s *Set) Member(key string) *Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.members.Get(key); m.Present() {
		return m.Resource
	}
	return nil
}

// Failed says that the name is no member only because it could not be had.
func (s *Set) Failed(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, n := s.members.Get(key), s.notes.byKey[key]
	return n != nil && n.err != nil && !m.Present()
}

// Names calls yield for the name of each member. yield is as in Since.
func (s *Set) Names(yield func(name string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members.All() {
		if !m.Removed {
			yield(m.Resource.Name())
		}
	}
}

// isEmpty reports whether the set has no members.
func (s *Set) isEmpty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present == 0
}
