package cache

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache/internal/members"
)

// SetWatch is a watcher's place at a set and its position in the order of
// changes, to be embedded in the watcher in the place of a [Watch].
type SetWatch struct {
	Watch
	// Guarded by topic.mu.
	seq uint64 // of the newest change that the watcher has taken
	// ahead is seq, or more: then the watcher has taken everything up to it but
	// removals (see FullWithRemoved), or is to take everything up to it again (see
	// Rewind).
	seenUpTo uint64
	// between are the positions of earlier states with removed members in them,
	// as far as they alone say that the watcher knows one of those.
	between []uint64
	// begin is seq as it was before the first of the calls of Since that have not
	// told everything yet; within says that there was one.
	batchStart uint64
	inBatch    bool
	// noted is the newest note that the watcher has taken.
	noteSeq uint64
	// Spell, if not nil, is what the watcher calls a member, by the name that the
	// origin gave it: full states for it have these names. It is set by who begins
	// the watch, before it reads anything.
	Spell func(name string) string
	// EachArrival yields a member that is not for new watchers (Resource.DoNotCache) each time
	// that it comes, because the watcher has watchers of its own. It is set as Spell is.
	EachArrival bool
	// joined is the newest change when the watch began: what is not for newcomers
	// is theirs only if it has come since. It is 0 once nothing is kept from the watcher.
	// passed is the newest change at the first of the calls that begin is of.
	began, batchEnd uint64
}

func (w *SetWatch) positions() []uint64 { return append(w.between, w.seq, w.seenUpTo) }

func (w *SetWatch) begin(seq uint64) { w.began = seq }

// knew says whether a watcher of full states was told of a removed member before
// it was removed, and not of its removal.
func (w *SetWatch) knew(m members.Member) bool {
	had := func(position uint64) bool { return m.Added <= position && m.Seq > position }
	return had(w.seq) || had(w.seenUpTo) || slices.ContainsFunc(w.between, had)
}

// join notes that a watcher comes, and says whether there is something that is
// not for newcomers.
func (s *Set) begin(w SetWatcher) (withheld bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.begin(s.seq)
	return s.withheld > 0
}

// News is what is new about a member.
type News uint8

// What can be new about a member.
const (
	// ErrorOnly: only an error is new.
	ErrorOnly News = iota
	// Changed: it has another content, or is new.
	Changed
	// Removed: it is gone.
	Removed
	// TTLRenewed: its time to live has begun anew. xDS: "TTL".
	TTLRenewed
	// TTLChanged: it came to have a time to live, or to have none. Who knows of
	// that must be told all of the resource.
	TTLChanged
)

// Member is what a watcher is told of a member of a set.
type Member struct {
	// Name is what the origin calls it.
	Name string
	News News
	// Resource is what it is; what it was, if it was Removed; nil if there is
	// nothing but Err.
	Resource *Resource
	// Err is why its newest state could not be had, if that is new.
	Err *Error
	// Previous is the resource before it became a redirect, until DropPrevious.
	Previous *Resource
}

// Rewind makes Since yield every member and every error to w's watcher again, and every removal
// of a member that the watcher knows.
func (s *Set) Rewind(w *SetWatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.seq, w.noteSeq, w.inBatch = 0, 0, false
}
