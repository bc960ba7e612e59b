package cache

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache/internal/members"
)

// SetWatch is a watcher's registration at a set, and its position in the order of changes. A
// [SetWatcher] embeds it instead of a [Watch].
type SetWatch struct {
	Watch
	// Guarded by topic.mu.
	seq uint64 // of the newest change that the watcher has received
	// seenUpTo is at least seq. If it is greater, the watcher has received everything up to
	// seenUpTo except removals (see FullWithRemoved), or is receiving it again (see Rewind).
	seenUpTo uint64
	// removedUpTo: the watcher has received the removals up to this change, if that is greater than seq: see
	// RemovedAhead.
	removedUpTo uint64
	// between are further positions at which the watcher has read the set. They are kept while
	// they alone show that the watcher knows a member that has been removed since.
	between []uint64
	// Several calls of Since can return one batch of changes: batchStart is seq before the first
	// call, batchEnd the newest change at that time. inBatch: the batch is not complete yet.
	batchStart, batchEnd uint64
	// noteSeq is the newest note that the watcher has received.
	noteSeq uint64
	// Spell, if not nil, returns the watcher's spelling of a member's name: full states for
	// it have these names. It is set before the watcher reads anything.
	Spell func(name string) string
	// EachArrival: Since calls yield each time that a member arrives that is not for new watchers
	// (Resource.DoNotCache), because the watcher has watchers of its own. It is set before the
	// watcher reads anything.
	EachArrival bool
	// OneByOne: the watcher applies the resources of a response one after another (xdstype.Type.OneByOne). It is set
	// before the watcher reads anything. apart are the keys of the members that are set apart for it: see claims.go.
	// lostAt is its position among the removals when the present batch began.
	OneByOne bool
	apart    map[string]struct{}
	lostAt   uint64
	inBatch  bool // see batchStart; guarded by topic.mu
	// began is the newest change when the watch began. Members that are not to be cached are
	// withheld from the watcher if they came before that. It is 0 once none is withheld.
	began uint64
}

// SetWatcher is a Watcher of a set: one that embeds a [SetWatch].
type SetWatcher interface {
	Watcher
	positions() []uint64
	claimsFrom() uint64
	begin(seq uint64)
}

func (w *SetWatch) positions() []uint64 { return append(w.between, w.seq, w.seenUpTo) }

func (w *SetWatch) begin(seq uint64) { w.began = seq }

// knew reports whether a watcher of full states has received a removed member, and not yet its
// removal.
func (w *SetWatch) knew(m members.Member) bool {
	knewAt := func(position uint64) bool { return m.Added <= position && m.Seq > position }
	return knewAt(w.seq) || knewAt(w.seenUpTo) || slices.ContainsFunc(w.between, knewAt)
}

// begin records where a new watcher begins, and reports whether members are withheld from it.
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
	// Changed: the member is new, or has other content.
	Changed
	// Removed: the member is removed.
	Removed
	// TTLRenewed: a heartbeat renewed the TTL. xDS: "TTL".
	TTLRenewed
	// Renewed: the member has come again with another version, after a watcher had refused it (Set.Refuse). It is new
	// only to those who have.
	Renewed
	// TTLChanged: the member got or lost a TTL. Clients that understand TTLs receive the whole
	// resource again.
	TTLChanged
)

// Member is what is new about one member of a set.
type Member struct {
	// Name is the origin's name of the member.
	Name string
	News News
	// Resource is the member's resource, or the last one if it is Removed. It is nil if there
	// is only Err.
	Resource *Resource
	// Err says why the newest state could not be fetched, if that is new.
	Err *Error
	// Previous is the resource before it became a redirect, until DropPrevious.
	Previous *Resource
}

// Rewind makes Since start again for w's watcher: with every member, every error, and every removal
// of a member that the watcher knows.
func (s *Set) Rewind(w *SetWatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.seq, w.noteSeq, w.inBatch, w.apart = 0, 0, false, nil
}
