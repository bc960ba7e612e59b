package cache

import (
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// The version that the newest one has replaced. The operator's pages use it to show what a client holds that rejected
// the newest version. The cache remembers only a few versions and hashes, not the contents.

// Earlier identifies the content of a resource before its last change.
type Earlier struct {
	Version string
	hash    uint64
}

// Has reports whether e is the content with a Resource.Hash. e may be nil.
func (e *Earlier) Has(hash uint64) bool { return e != nil && e.hash == hash }

// earlier returns State.Earlier for next, which replaces s.
func (s *State) earlier(next *State) *Earlier {
	switch {
	case s.Resource == nil:
		return nil
	case sameContent(s.Resource, next.Resource):
		return s.Earlier
	}
	return &Earlier{strings.Clone(s.Resource.Version()), s.Resource.Hash()} // the version is a part of the resource
}

// maxReplaced bounds the replaced members that a set remembers, and how many it records of one update.
const maxReplaced = 64

// replacedMember is an earlier state of a member.
type replacedMember struct {
	key      uint64 // a hash of the member's key
	from, to uint64 // the changes of the set that began and ended the state
	version  string
	none     bool // the member was removed
}

// replaced are the members of a set that were replaced last: a ring buffer.
type replaced struct {
	all   []replacedMember
	next  int // index of the oldest one, once there are maxReplaced
	noted int // number recorded in the current update
}

func (r *replaced) note(m replacedMember) {
	r.noted++
	if len(r.all) < maxReplaced {
		r.all = append(r.all, m)
		return
	}
	r.all[r.next] = m
	r.next = (r.next + 1) % maxReplaced
}

// EarlierMember is a member of a set as it was at one of the set's changes.
type EarlierMember struct {
	Version string
	// None: the member did not exist.
	None bool
	// From is the change that began this state.
	From uint64
}

// Earlier returns the state of a member for a watcher that has received all changes up to upTo, if the member has
// changed since. ok is false if it has not, or if the state is no longer remembered.
func (s *Set) Earlier(key string, upTo uint64) (m EarlierMember, ok bool) {
	hash := xxhash.Sum64String(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.replaced.all, func(m replacedMember) bool { return m.key == hash && m.from <= upTo && upTo < m.to })
	if at < 0 {
		return m, false
	}
	found := &s.replaced.all[at]
	return EarlierMember{found.version, found.none, found.from}, true
}
