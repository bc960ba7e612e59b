package store

import (
	"maps"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Notes accepts changes to be written. See [Store.Note].
type Notes struct {
	notes  *notes
	server string
	now    time.Time
}

// notes has the changes that are not written yet: the newest state of each record.
type notes struct {
	entries map[cache.Key]state
	sets    map[cache.Key]*setNotes
	// contents are sets whose cached members must all be written, with the servers that sent them.
	contents map[cache.Key]string
	count    int // the number of entries, members, sets and contents
}

// state is the noted state of a record.
type state struct {
	resource *cache.Resource // nil: the resource does not exist
	server   string
	time     time.Time
}

type setNotes struct {
	members map[string]state
	// server and time are those of the set's own record, which is written only if whole.
	whole  bool
	server string
	time   time.Time
	// others: stored members that are no longer in the set must be deleted.
	others bool
}

func newNotes() *notes {
	return &notes{entries: map[cache.Key]state{}, sets: map[cache.Key]*setNotes{}, contents: map[cache.Key]string{}}
}

// Note calls f, which notes all changes of one response. server is the server that sent them. Note takes as long as f
// does, and does not wait for the disk. The caller may hold locks; f must not take any.
func (s *Store) Note(server string, f func(*Notes)) {
	s.mu.Lock()
	f(&Notes{notes: s.noted, server: server, now: time.Now()})
	s.mu.Unlock()
	s.rouse()
}

// Entry notes the resource of a name, nil if the resource does not exist.
func (n *Notes) Entry(k cache.Key, r *cache.Resource) {
	if _, there := n.notes.entries[k]; !there {
		n.notes.count++
	}
	n.notes.entries[k] = state{r, n.server, n.now}
}

// Member notes a member of a set, nil if the member was removed.
func (n *Notes) Member(set cache.Key, key string, r *cache.Resource) {
	of := n.set(set)
	if _, there := of.members[key]; !there {
		n.notes.count++
	}
	of.members[key] = state{r, n.server, n.now}
}

// Whole notes that a set is completely known. others: the store may have members that were removed from the set
// without a note.
func (n *Notes) Whole(set cache.Key, others bool) {
	of := n.set(set)
	of.whole, of.server, of.time = true, n.server, n.now
	of.others = of.others || others
}

// Contents notes all members that the cache has of a set at the time of writing.
func (n *Notes) Contents(set cache.Key) {
	if _, there := n.notes.contents[set]; !there {
		n.notes.count++
	}
	n.notes.contents[set] = n.server
}

// addContents replaces contents with the cache's members. A noted member is not newer than the cache's.
func (n *notes) addContents(of func(k cache.Key, yield func(key string, r *cache.Resource))) {
	if len(n.contents) == 0 {
		return
	}
	for k, server := range n.contents {
		all := Notes{n, server, time.Now()}
		of(k, func(key string, r *cache.Resource) { all.Member(k, key, r) })
		all.Whole(k, true)
	}
	clear(n.contents)
	n.recount()
}

func (n *Notes) set(k cache.Key) *setNotes {
	of := n.notes.sets[k]
	if of == nil {
		of = &setNotes{members: map[string]state{}}
		n.notes.sets[k] = of
		n.notes.count++
	}
	return of
}

func (n *notes) clear() {
	clear(n.entries)
	clear(n.sets)
	clear(n.contents)
}

// take returns the notes, and starts with new ones.
func (s *Store) take() *notes {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.noted
	s.noted, s.writing = s.spare, true
	if s.spare = nil; s.noted == nil {
		s.noted = newNotes()
	}
	return taken
}

// took records that the taken notes are written, or put back.
func (s *Store) took(taken *notes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	if taken != s.noted && len(taken.entries)+len(taken.sets) == 0 && taken.count <= spareMost {
		taken.count = 0
		s.spare = taken
	}
}

// spareMost is the largest number of notes whose maps are reused.
const spareMost = 1 << 12

// putBack adds notes that could not be written to the newer notes.
func (s *Store) putBack(old *notes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newer := s.noted
	maps.Copy(old.entries, newer.entries)
	maps.Copy(old.contents, newer.contents)
	for k, set := range newer.sets {
		before := old.sets[k]
		if before == nil {
			old.sets[k] = set
			continue
		}
		maps.Copy(before.members, set.members)
		before.others = before.others || set.others
		if set.whole {
			before.whole, before.server, before.time = true, set.server, set.time
		}
	}
	old.recount()
	if old.count > maxPending {
		old.forget()
	}
	s.noted = old
}

func (n *notes) recount() {
	n.count = len(n.entries) + len(n.sets) + len(n.contents)
	for _, set := range n.sets {
		n.count += len(set.members)
	}
}

// maxPending bounds the notes that wait while the disk accepts none: clients can invent any number of names that do
// not exist.
const maxPending = 1 << 20

// forget discards notes that names do not exist. After the disk recovers, the store may still have some of these
// names until their control plane sends an update.
func (n *notes) forget() {
	maps.DeleteFunc(n.entries, func(_ cache.Key, s state) bool { return s.resource == nil })
	n.recount()
}
