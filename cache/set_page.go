package cache

import (
	"sort"
	"time"
)

// Reading a set without a watch: a page at a time, so that the set is never locked for
// long.

// SetPosition is where a page ends. The zero value is the beginning.
type SetPosition struct {
	seq, note uint64
	notes     bool // all members have been read
}

// SetMember is the current state of one name of a set.
type SetMember struct {
	// Key is the key of the name in the set. The string may share the resource's bytes, and
	// so may those of Resource.
	Key string
	// Resource is the member's resource, or the last one if it is Removed. It is nil if there is only Err.
	Resource *Resource
	// Changed is the number of the member's last change among the changes of the set, Added the number
	// of the change that added it.
	Changed, Added uint64
	Removed        bool
	// Withheld: the member is not for the watcher, which came later (Resource.DoNotCache).
	Withheld bool
	// Err says why the newest state could not be fetched.
	Err *Error
	// Since is the time of the last change, in nanoseconds since the epoch. For an old change it may be
	// the time of a later one.
	Since int64
}

// changeTime is the time of the changes of a set up to seq, and after the seq of the changeTime before it.
type changeTime struct {
	seq  uint64
	time int64 // nanoseconds since the epoch
}

// maxTimes bounds the times that a set remembers. An older change gets the time of a later one.
const maxTimes = 32

// noteTime records the time of the changes that have no time yet. The caller holds mu.
func (s *Set) noteTime() {
	n := len(s.times)
	if s.seq == 0 || n > 0 && s.times[n-1].seq == s.seq {
		return
	}
	if n == maxTimes { // drop every other time of the older half
		kept := s.times[:0]
		for i, t := range s.times {
			if i%2 == 1 || i >= maxTimes/2 {
				kept = append(kept, t)
			}
		}
		s.times = kept
	}
	s.times = append(s.times, changeTime{s.seq, time.Now().UnixNano()})
}

// sinceOf returns the time of a change. The caller holds mu.
func (s *Set) sinceOf(seq uint64) int64 {
	i := sort.Search(len(s.times), func(i int) bool { return s.times[i].seq >= seq })
	if i == len(s.times) {
		return 0 // the update is being stored
	}
	return s.times[i].time
}

// Page appends up to n members to page, in the order of their changes, and then the names that have only
// an error. It begins after from, and returns where the next page begins. If it appended nothing, there
// are no more pages. A member that changes between two pages comes again. Withheld is set for w's watcher.
func (s *Set) Page(w *SetWatch, from SetPosition, n int, page []SetMember) ([]SetMember, SetPosition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !from.notes {
		for m := range s.members.After(from.seq) {
			if n == 0 {
				return page, from
			}
			n--
			member := SetMember{Key: s.members.Key(m), Resource: m.Resource, Changed: m.Seq, Added: m.Added, Removed: m.Removed, Since: s.sinceOf(m.Seq)}
			member.Withheld = !m.Removed && s.withheldFrom(w, m)
			if note := s.notes.byKey[member.Key]; note != nil && !m.Removed {
				member.Err = note.err
			}
			page = append(page, member)
			from.seq = m.Seq
		}
		from.notes = true
	}
	for note := range s.notes.after(from.note) {
		if n == 0 {
			break
		}
		n--
		from.note = note.seq
		if m := s.members.Get(note.key); note.err != nil && !m.Present() {
			page = append(page, SetMember{Key: note.key, Err: note.err})
		}
	}
	return page, from
}

// ChangedAt returns the number of a name's last change, 0 if none is remembered, and whether the name is a member now.
func (s *Set) ChangedAt(key string) (change uint64, present bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members.Get(key)
	return m.Seq, m.Present()
}

// ChangedIn calls yield with the name of each member whose last change is after from, up to and including to, until it
// returns false. The rules for yield of Since apply.
func (s *Set) ChangedIn(from, to uint64, yield func(name string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members.After(from) {
		if m.Seq > to || m.Present() && !yield(m.Resource.Name()) {
			return
		}
	}
}

// Seen returns upTo, the change of the set up to which the watcher has received everything but removals,
// and the change after which Since continues. After Rewind, the latter is an earlier one. Only the
// watcher may call it.
func (w *SetWatch) Seen() (upTo, continuesFrom uint64) { return w.seenUpTo, w.seq }

// Has reports whether a watcher that has received everything up to a change has the member, in any version.
func (m *SetMember) Has(upTo uint64) bool { return !m.Withheld && m.Resource != nil && m.Added <= upTo }
