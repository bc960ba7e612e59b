package upstream

import (
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Clients can make up types, so a stream may have very many. What happens concerns one
// of them, or a few, and must not cost work for the others.

// agenda says which of a stream's types are to be looked at, and keeps what all of them
// come to. Stream.mu guards it. The zero value is ready.
type agenda struct {
	// pending are the types to which something has happened, each once.
	pending []*feed
	// due is when a type is to be looked at although nothing has happened to it.
	due cache.Expiries[*feed]
	sum tally
}

// tally is what one type adds to what is known of all.
type tally struct {
	wanted int // names and wildcards that have not been given up
	idle   int // 1 if there are none
	late   int // 1 if a new stream is needed
	unsent int // the memory of answers that wait to be sent, in bytes
}

// entry is what the agenda notes of a type.
type entry struct {
	pending bool
	counted tally // is in the agenda's sum
}

// concern notes that something has happened to a type. The caller holds mu.
func (s *Stream) concern(f *feed) {
	s.recount(f)
	s.agenda.add(f)
}

// concernAll notes that something has happened to all types. The caller holds mu.
func (s *Stream) concernAll() {
	for _, f := range s.feeds {
		s.concern(f)
	}
}

// concerned returns the types that are to be looked at now, in the order of sorted, and
// takes them off the agenda. The caller holds mu.
func (s *Stream) concerned(now time.Time) []*feed {
	a := &s.agenda
	for _, f := range a.due.Due(now) {
		a.add(f)
	}
	feeds := a.pending
	a.pending = nil
	for _, f := range feeds {
		f.entry.pending = false
	}
	feeds = slices.DeleteFunc(feeds, func(f *feed) bool { return s.feeds[f.typeURL()] != f })
	slices.SortFunc(feeds, func(a, b *feed) int { return strings.Compare(a.typeURL(), b.typeURL()) })
	return feeds
}

// schedule notes when a type is to be looked at although nothing has happened to it.
// silence says that this is also when it has waited too long for an answer. The caller
// holds mu.
func (s *Stream) schedule(f *feed, silence bool) {
	at, ok := f.topics.nextDue()
	if since, waits := f.topics.oldest(); waits && silence {
		if late := since.Add(s.opts.ResponseTimeout); !ok || late.Before(at) {
			at, ok = late, true
		}
	}
	before, was := s.agenda.due.At(f)
	switch {
	case !ok:
		s.agenda.due.End(f)
	case !was || !before.Equal(at):
		s.agenda.due.Set(f, at)
	}
}

// remove forgets a type of which nothing is wanted. The caller holds mu.
func (s *Stream) remove(f *feed) {
	s.agenda.count(f, tally{})
	s.agenda.due.End(f)
	s.feeds = cache.Without(s.feeds, &s.room, f.typeURL())
}

// recount brings what all types come to in line with one of them. The caller holds mu.
func (s *Stream) recount(f *feed) {
	t := tally{wanted: f.wanted()}
	if t.wanted == 0 {
		t.idle = 1
	}
	if f.session != nil {
		t.unsent = f.session.pending()
	}
	if f.stale || f.session != nil && f.topics.needStream(f.session.begun()) {
		t.late = 1
	}
	s.agenda.count(f, t)
}

func (a *agenda) add(f *feed) {
	if !f.entry.pending {
		f.entry.pending = true
		a.pending = append(a.pending, f)
	}
}

// count counts a type anew.
func (a *agenda) count(f *feed, t tally) {
	before := &f.entry.counted
	a.sum.wanted += t.wanted - before.wanted
	a.sum.idle += t.idle - before.idle
	a.sum.late += t.late - before.late
	a.sum.unsent += t.unsent - before.unsent
	*before = t
}
