package upstream

import (
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// What puts a type on the agenda, and what takes it off.

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

// concerned takes the types that must be processed now off the agenda, and returns them in
// the order of sorted. The caller holds mu.
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

// schedule notes when a type must be processed although nothing has happened to it: with silence,
// also when it has waited too long for an answer. The caller holds mu.
func (s *Stream) schedule(f *feed, silence bool) {
	s.showUnsaid(f, f.topics.Unsaid())
	at, ok := f.topics.NextDue()
	if since, waits := f.topics.Oldest(); waits && silence {
		if late := since.Add(s.opts.ResponseTimeout); !ok || late.Before(at) {
			at, ok = late, true
		}
	}
	if again := s.lookAtQuiet(f); !again.IsZero() && (!ok || again.Before(at)) {
		at, ok = again, true
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
	s.showQuiet(f, new(session.Quiet))
	s.showUnsaid(f, 0)
	s.feeds = cache.Without(s.feeds, &s.room, f.typeURL())
}

// recount updates the agenda's sum for one type. The caller holds mu.
func (s *Stream) recount(f *feed) {
	t := tally{wanted: f.wanted()}
	if f.topics.Listens() {
		t.listens = 1
	}
	if t.wanted == 0 {
		t.idle = 1
	}
	if f.session != nil {
		t.unsent = f.session.Pending()
	}
	if f.stale || f.session != nil && f.topics.NeedStream(f.session.Begun()) {
		t.late = 1
	}
	s.agenda.count(f, t)
}
