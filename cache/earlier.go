package cache

import (
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// What was there before what is there now, for whoever explains what a client holds that has rejected the newest. Only
// versions are remembered, and few of them.

// Earlier is the content that another one has replaced.
type Earlier struct {
	Version string
	hash    uint64
}

// Has reports whether it is the content that a resource's Hash stands for.
func (e *Earlier) Has(hash uint64) bool { return e != nil && e.hash == hash }

// earlier returns what an entry has had, if next replaces it.
func (s *State) earlier(next *State) *Earlier {
	switch {
	case s.Resource == nil:
		return nil
	case sameContent(s.Resource, next.Resource):
		return s.Earlier
	}
	return &Earlier{strings.Clone(s.Resource.Version()), s.Resource.Hash()} // the version is a part of the resource
}

// maxReplaced bounds the replaced members that a set remembers, and how many it notes of one update.
const maxReplaced = 64

// replacedMember is the state of a member from one change of its set to another.
type replacedMember struct {
	key      uint64 // a hash
	from, to uint64
	version  string
	none     bool // it was removed
}

// replaced are the newest members of a set that were replaced.
type replaced struct {
	all   []replacedMember
	next  int // the oldest one, once there are maxReplaced
	noted int // in the present update
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
	// None: it was not there. From is the change with which that began.
	None bool
	From uint64
}

// Earlier returns what a member was for who was given everything up to a change, if something else has come since. It
// is not known (ok is false) if that was long ago.
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
