package store

import (
	"maps"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Notes take what is to be written. See [Store.Note].
type Notes struct {
	notes  *notes
	server string
	now    time.Time
}

// notes are what is not written yet: the newest state of each record.
type notes struct {
	entries map[cache.Key]state
	sets    map[cache.Key]*setNotes
	// contents are sets of which everything that the cache has is to be written, with the servers that sent it.
	contents map[cache.Key]string
	count    int // of entries, members, sets and contents
}

// state is what is to become of a record.
type state struct {
	resource *cache.Resource // nil: it does not exist
	server   string
	time     time.Time
}

type setNotes struct {
	members map[string]state
	// server and time are of the set's own record, if there is to be one now (whole).
	whole  bool
	server string
	time   time.Time
	// others: what is stored and not a member now is to be deleted.
	others bool
}

func newNotes() *notes {
	return &notes{entries: map[cache.Key]state{}, sets: map[cache.Key]*setNotes{}, contents: map[cache.Key]string{}}
}

// Note calls f, which notes what has changed, all that came in one response at once. server is
// who sent it. It costs the time for what is noted, and does not wait for the disk. The caller may
// hold locks; f must not take any.
func (s *Store) Note(server string, f func(*Notes)) {
	s.mu.Lock()
	f(&Notes{notes: s.noted, server: server, now: time.Now()})
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Entry notes the resource of a name, nil if it does not exist.
func (n *Notes) Entry(k cache.Key, r *cache.Resource) {
	if _, there := n.notes.entries[k]; !there {
		n.notes.count++
	}
	n.notes.entries[k] = state{r, n.server, n.now}
}

// Member notes a member of a set, nil if it is none any more.
func (n *Notes) Member(set cache.Key, key string, r *cache.Resource) {
	of := n.set(set)
	if _, there := of.members[key]; !there {
		n.notes.count++
	}
	of.members[key] = state{r, n.server, n.now}
}

// Whole notes that a set is known as a whole. others says that there may be
// something stored that is not a member any more and was not noted.
func (n *Notes) Whole(set cache.Key, others bool) {
	of := n.set(set)
	of.whole, of.server, of.time = true, n.server, n.now
	of.others = of.others || others
}

// Contents notes all that the cache has of a set when it is written.
func (n *Notes) Contents(set cache.Key) {
	if _, there := n.notes.contents[set]; !there {
		n.notes.count++
	}
	n.notes.contents[set] = n.server
}

// addContents replaces contents by what the cache has. What is noted of a member is not newer.
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

// take returns what is noted, and begins anew.
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

// took notes that what was taken is written, or put back.
func (s *Store) took(taken *notes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	if taken != s.noted && len(taken.entries)+len(taken.sets) == 0 && taken.count <= spareMost {
		taken.count = 0
		s.spare = taken
	}
}

// spareMost is how many notes the maps are for that are used again.
const spareMost = 1 << 12

// putBack adds notes that could not be written to those that have come since, which are newer.
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

// maxPending bounds what waits for a disk that takes nothing: names that clients made up, and
// that do not exist, would be more and more.
const maxPending = 1 << 20

// forget forgets that names do not exist. If the disk recovers, the store may have some of them
// until their control plane is heard again.
func (n *notes) forget() {
	maps.DeleteFunc(n.entries, func(_ cache.Key, s state) bool { return s.resource == nil })
	n.recount()
}
