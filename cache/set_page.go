package cache

import (
	"sort"
	"time"
)

// Reading a set without a watch: a page at a time, so that the set is never locked for
// long.

// SetPosition is how far a page reaches. The zero value is the beginning.
type SetPosition struct {
	seq, note uint64
	notes     bool // the members are read
}

// SetMember is one name of a set as it is now.
type SetMember struct {
	// Key is what the set stores the name under. The string may share the resource's bytes, and
	// so may those of Resource.
	Key string
	// Resource is the member's, the last one if it is Removed, and nil if there is nothing but Err.
	Resource *Resource
	// Changed is the place of its last change among the changes of the set, Added that at which it came.
	Changed, Added uint64
	Removed        bool
	// Withheld: it is not for the watcher, who came later (Resource.DoNotCache).
	Withheld bool
	// Err says why the newest state could not be fetched.
	Err *Error
	// Since is when it changed last, in nanoseconds since the epoch; of a change of long ago it may be a
	// later time.
	Since int64
}

// changeTime is when the changes of a set came, those after the one before and up to seq.
type changeTime struct {
	seq uint64
	at  int64 // nanoseconds since the epoch
}

// maxTimes bounds the times that a set remembers. Of older changes it remembers the time of a later one.
const maxTimes = 32

// noteTime notes when changes came that have no time yet. The caller holds mu.
func (s *Set) noteTime() {
	n := len(s.times)
	if s.seq == 0 || n > 0 && s.times[n-1].seq == s.seq {
		return
	}
	if n == maxTimes { // the older half is thinned out
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

// sinceOf returns when a change came. The caller holds mu.
func (s *Set) sinceOf(seq uint64) int64 {
	i := sort.Search(len(s.times), func(i int) bool { return s.times[i].seq >= seq })
	if i == len(s.times) {
		return 0 // the update is being stored
	}
	return s.times[i].at
}

// Page appends up to n members to page, in the order of their changes, and then those names of which
// there is only an error. It begins after from, and returns where the next page begins. There is none
// if nothing was appended. A member that changes between two pages comes again. w is whose view it is.
func (s *Set) Page(w *SetWatch, from SetPosition, n int, page []SetMember) ([]SetMember, SetPosition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !from.notes {
		for m := range s.members.After(from.seq) {
			if n == 0 {
				return page, from
			}
			n--
			of := SetMember{Key: s.members.Key(m), Resource: m.Resource, Changed: m.Seq, Added: m.Added, Removed: m.Removed, Since: s.sinceOf(m.Seq)}
			of.Withheld = !m.Removed && s.withheldFrom(w, m)
			if note := s.notes.byKey[of.Key]; note != nil && !m.Removed {
				of.Err = note.err
			}
			page = append(page, of)
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

// Seen returns up to which change of its set the watcher was given everything but removals, and the
// change that Since continues from, which is an earlier one after Rewind. Only who watches may call it.
func (w *SetWatch) Seen() (upTo, continuesFrom uint64) { return w.seenUpTo, w.seq }

// Has reports whether a watcher that was given everything up to a change has a member, in whatever version.
func (m *SetMember) Has(upTo uint64) bool { return !m.Withheld && m.Resource != nil && m.Added <= upTo }
