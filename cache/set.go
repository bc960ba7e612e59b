package cache

import (
	"slices"

	"google.golang.org/grpc/mem"
)

// Set is a topic of many resources: all that a wildcard gives.
//
// Its members are kept in the order of their last change, and a watcher keeps
// one position in that order. So an unchanged member costs nothing when another
// changes, and nothing is stored per member and watcher.
type Set struct {
	topic

	// Guarded by topic.mu.
	status  Status
	err     *Error
	members map[string]*member // by Change.Name; removed ones too, see sweep
	order   order
	present int    // members that have not been removed
	seq     uint64 // of the newest change
	sweepAt int    // the number of removed members at which to sweep
	sum     uint64 // over the members that are present, see digest
	// originVersion is the SotW version_info under which the origin gave exactly
	// this state, empty if no single one did.
	originVersion string
	body          mem.Buffer // of this state, once somebody asked for it; else nil
	extended      extended
	// failed are names that could not be had and are not members: they may
	// exist.
	failed map[string]struct{}
}

// extended is the newest state that Extended built, and for which watchers: those
// that stand where the first one stood.
type extended struct {
	state      uint64 // Set.seq
	seq, ahead uint64 // of the watcher
	between    []uint64
	full       Full
}

// member is one resource of a set, or the memory of one.
type member struct {
	key      string    // in Set.members
	resource *Resource // what it is; what it was, if it is removed
	removed  bool
	born     uint64 // seq of its coming; coming back while its removal is remembered is no new coming
	seq      uint64 // of its last change; 0 once forgotten

	prev, next *member
}

// SetWatch is a watcher's place at a set and its position in the order of
// changes, to be embedded in the watcher in the place of a [Watch].
type SetWatch struct {
	Watch
	// Guarded by topic.mu.
	seq uint64  // of the newest change that the watcher has taken
	at  *member // a hint: the member with that seq, if it has not changed since
	// ahead is seq, or more: then the watcher has taken everything up to it but
	// removals (see Extended), or is to take everything up to it again (see
	// Restart).
	ahead uint64
	// between are the positions of earlier states with removed members in them,
	// as far as they alone say that the watcher knows one of those.
	between []uint64
}

func (w *SetWatch) positions() []uint64 { return append(w.between, w.seq, w.ahead) }

// knew says whether a watcher of full states was told of a removed member before
// it was removed, and not of its removal.
func (w *SetWatch) knew(m *member) bool {
	had := func(position uint64) bool { return m.born <= position && m.seq > position }
	return had(w.seq) || had(w.ahead) || slices.ContainsFunc(w.between, had)
}

// minSweep is how many removed members a set remembers without looking whether
// anybody needs them.
const minSweep = 128

func newSet(k Key) *Set {
	return &Set{topic: topic{key: k}, members: map[string]*member{}, sweepAt: minSweep}
}

// Status returns the set's status, and the error if it is Failed. A set is
// Present once its members are known, also if there are none.
func (s *Set) Status() (Status, *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status, s.err
}

// Len returns the number of members.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present
}

// Member returns the member that is kept under that name (as Key.Name is an
// entry's), nil if there is none.
func (s *Set) Member(key string) *Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.members[key]; m != nil && !m.removed {
		return m.resource
	}
	return nil
}

// Failed says that the name is no member only because it could not be had.
func (s *Set) Failed(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, failed := s.failed[key]
	return failed
}

// Since calls yield for each member that has changed since w's position, in the
// order of the changes, with a nil resource for one that was removed. When
// yield returns false, that member is not taken: the next call begins with it.
// Since reports whether w has now taken everything. yield is called with the
// set locked, so it must be short and must not call the cache.
func (s *Set) Since(w *SetWatch, yield func(name string, r *Resource) bool) (all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := w.ahead
	for m := s.after(w); m != nil; m = m.next {
		switch {
		case !m.removed:
			if !yield(m.resource.name, m.resource) {
				return false
			}
		// One that came and went since was never known.
		case m.born <= told && m.seq > told:
			if !yield(m.resource.name, nil) {
				return false
			}
		}
		w.seq, w.at, w.ahead = m.seq, m, max(w.ahead, m.seq)
	}
	w.seq, w.at, w.ahead = s.seq, s.order.back, s.seq
	return true
}

// Restart has w's watcher told of every member again. Of what it was told before
// and is removed, it is still told the removal.
func (s *Set) Restart(w *SetWatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.seq, w.at = 0, nil
}

// after returns the first member in the order behind w's position.
func (s *Set) after(w *SetWatch) *member {
	if w.seq == s.seq {
		return nil
	}
	if w.seq == 0 {
		return s.order.front
	}
	if w.at != nil && w.at.seq == w.seq {
		return w.at.next
	}
	m := s.order.back
	for m != nil && m.prev != nil && m.prev.seq > w.seq {
		m = m.prev
	}
	if m != nil && m.seq <= w.seq {
		return nil
	}
	return m
}

// Due says what w's watcher, one of full states, is yet to be told: of members
// that are new or changed, and of members that were removed.
func (s *Set) Due(w *SetWatch) (changes, removals bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := s.after(w); m != nil && !(changes && removals); m = m.next {
		if m.removed {
			removals = removals || w.knew(m)
		} else {
			changes = changes || m.seq > w.ahead
		}
	}
	return changes, removals
}

// Full is the whole state of a set, for SotW.
type Full struct {
	// Version is the version_info: the origin's where that decides the state,
	// otherwise a hash over the set.
	Version string
	// Resources is a DiscoveryResponse with nothing but the set's resources.
	Resources mem.Buffer
	// Len is the number of resources.
	Len int
	// Hash is the same for the same names and contents, whatever the version.
	Hash uint64
}

// Full returns the set's state as a whole, and moves w past it. It is built once
// per state, and shared by all. changed is called for each member that is new or
// changed to the watcher, and look once, with what says whether a name (as
// Key.Name is an entry's) is in the state; both as yield is in Since.
func (s *Set) Full(w *SetWatch, changed func(*Resource), look func(has func(key string) bool)) Full {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes(w, changed)
	look(func(key string) bool {
		m := s.members[key]
		return m != nil && !m.removed
	})
	w.seq, w.at, w.ahead, w.between = s.seq, s.order.back, s.seq, nil
	if s.body == nil {
		s.body = s.encode(func(*member) bool { return false })
	}
	return Full{Version: s.version(), Resources: s.body, Len: s.present, Hash: s.sum}
}

// Extended is Full with the removed members that the watcher knows still in it,
// as they were last: it is told of everything but removals. w is moved so that
// they are still due.
func (s *Set) Extended(w *SetWatch, changed func(*Resource), look func(has func(key string) bool)) Full {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes(w, changed)
	look(func(key string) bool {
		m := s.members[key]
		return m != nil && (!m.removed || w.knew(m))
	})
	if e := &s.extended; e.full.Resources == nil || e.state != s.seq || e.seq != w.seq || e.ahead != w.ahead || !slices.Equal(e.between, w.between) {
		*e = extended{state: s.seq, seq: w.seq, ahead: w.ahead, between: w.between, full: s.extend(w)}
	}
	w.between = s.between(w)
	w.ahead = s.seq
	return s.extended.full
}

// between returns what w.between has to be once ahead has moved on: for each
// removed member that the watcher knows, the position of the newest state that had
// it while it was there.
func (s *Set) between(w *SetWatch) []uint64 {
	var between []uint64
	for m := s.after(w); m != nil; m = m.next {
		if !m.removed || !w.knew(m) {
			continue
		}
		newest := w.seq
		for _, position := range w.positions() {
			if position < m.seq {
				newest = max(newest, position)
			}
		}
		if newest != w.seq {
			between = append(between, newest)
		}
	}
	slices.Sort(between)
	return slices.Compact(between)
}

func (s *Set) extend(w *SetWatch) Full {
	f := Full{Len: s.present}
	sum := s.sum
	f.Resources = s.encode(func(m *member) bool {
		if !w.knew(m) {
			return false
		}
		f.Len++
		sum += digest(m.resource)
		return true
	})
	f.Version, f.Hash = formatHash(sum), sum
	return f
}

// changes calls changed for each member that is new or changed to the watcher.
func (s *Set) changes(w *SetWatch, changed func(*Resource)) {
	for m := s.after(w); m != nil; m = m.next {
		if !m.removed && m.seq > w.ahead {
			changed(m.resource)
		}
	}
}

// version is the version_info of the set's state. The caller holds mu.
func (s *Set) version() string {
	if s.originVersion != "" {
		return s.originVersion
	}
	return formatHash(s.sum)
}

// encode puts all members in a body that have not been removed, or that keep
// wants nevertheless.
func (s *Set) encode(keep func(*member) bool) mem.Buffer {
	var parts mem.BufferSlice
	for m := s.order.front; m != nil; m = m.next {
		if !m.removed || keep(m) {
			parts = m.resource.AppendSotW(parts, m.resource.name)
		}
	}
	body := make([]byte, parts.Len())
	parts.CopyTo(body)
	return mem.SliceBuffer(body)
}
