package cache

import (
	"slices"

	"github.com/cespare/xxhash/v2"
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
	present int    // members that are there
	seq     uint64 // of the newest change
	sweepAt int    // the number of removed members at which to sweep
	sum     uint64 // over the members that are there, see digest
	// originVersion is the SotW version_info under which the origin gave exactly
	// this state, empty if no single one did.
	originVersion string
	body          mem.Buffer // of this state, once somebody asked for it; else nil
}

// member is one resource of a set, or the memory of one.
type member struct {
	key      string    // in Set.members
	name     string    // in the origin's spelling
	resource *Resource // nil: removed
	born     uint64    // seq of its coming; coming back while its removal is remembered is no new coming
	seq      uint64    // of its last change; 0 once forgotten

	prev, next *member
}

// SetWatch is a watcher's place at a set and its position in the order of
// changes, to be embedded in the watcher in the place of a [Watch].
type SetWatch struct {
	Watch
	// Guarded by topic.mu.
	seq uint64  // of the newest change that the watcher has taken
	at  *member // a hint: the member with that seq, if it has not changed since
}

func (w *SetWatch) position() uint64 { return w.seq }

// minSweep is how many removed members a set remembers without looking whether
// anybody needs them.
const minSweep = 1024

func newSet(k Key) *Set {
	return &Set{topic: topic{key: k}, members: map[string]*member{}, sweepAt: minSweep}
}

// Key returns what the set is kept under.
func (s *Set) Key() Key { return s.key }

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
	if m := s.members[key]; m != nil {
		return m.resource
	}
	return nil
}

// Since calls yield for each member that has changed since w's position, in the
// order of the changes, with a nil resource for one that was removed. When
// yield returns false, that member is not taken: the next call begins with it.
// Since reports whether w has now taken everything. yield is called with the
// set locked, so it must be short and must not call the cache.
func (s *Set) Since(w *SetWatch, yield func(name string, r *Resource) bool) (all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := s.after(w); m != nil; m = m.next {
		// A member that came and went since then was never known.
		known := m.resource != nil || m.born <= w.seq
		if known && !yield(m.name, m.resource) {
			return false
		}
		w.seq, w.at = m.seq, m
	}
	w.seq = s.seq
	return true
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

// Full is the whole state of a set, for SotW.
type Full struct {
	// Version is the version_info: the origin's where that decides the state,
	// otherwise a hash over the set.
	Version string
	// Resources is a DiscoveryResponse with nothing but the set's resources,
	// built once per state and shared by all.
	Resources mem.Buffer
	// Len is the number of resources.
	Len int
}

// Full returns the set's state as a whole, and moves w past it.
func (s *Set) Full(w *SetWatch) Full {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.seq, w.at = s.seq, s.order.back
	if s.body == nil {
		s.body = s.encode()
	}
	return Full{Version: s.version(), Resources: s.body, Len: s.present}
}

// Version returns what Full would give as the version, without encoding
// anything.
func (s *Set) Version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version()
}

func (s *Set) version() string {
	if s.originVersion != "" {
		return s.originVersion
	}
	return formatHash(s.sum)
}

func (s *Set) encode() mem.Buffer {
	var parts mem.BufferSlice
	for m := s.order.front; m != nil; m = m.next {
		if m.resource != nil {
			parts = m.resource.AppendSotW(parts, m.name)
		}
	}
	body := make([]byte, parts.Len())
	parts.CopyTo(body)
	return mem.SliceBuffer(body)
}

// put takes a member's new state, and says whether clients would notice.
func (s *Set) put(key string, r *Resource) bool {
	m := s.members[key]
	if m == nil {
		if r == nil {
			return false
		}
		m = &member{key: key, born: s.seq + 1}
		s.members[key] = m
	} else {
		switch old := m.resource; {
		case old == nil && r == nil:
			return false
		case old != nil && r != nil && old.hash == r.hash:
			m.resource = r // of another version, perhaps
			return false
		}
		s.order.remove(m)
		if m.resource != nil {
			s.present--
			s.sum -= digest(m.resource)
		}
	}
	s.seq++
	m.seq, m.resource = s.seq, r
	s.order.pushBack(m)
	if r != nil {
		m.name = r.name
		s.present++
		s.sum += digest(r)
	}
	s.body = nil
	return true
}

// apply takes an update, and tells the watchers if clients would notice.
func (s *Set) apply(u SetUpdate, wakers []Waker) []Waker {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.Err != nil {
		return s.fail(u.Err, wakers)
	}
	changed := s.status != Present
	s.status, s.err = Present, nil
	if u.Full {
		changed = s.removeAllBut(u.Changes) || changed
	}
	for _, c := range u.Changes {
		if c.Err == nil {
			changed = s.put(c.Name, c.Resource) || changed
		}
	}
	switch {
	case u.Version != "" && u.Full:
		s.originVersion = u.Version
	case changed:
		s.originVersion = ""
	}
	if len(s.members)-s.present > s.sweepAt {
		s.sweep()
	}
	if changed {
		wakers = s.tell(wakers)
	}
	return wakers
}

// fail notes that the set could not be had; what is held stays.
func (s *Set) fail(err *Error, wakers []Waker) []Waker {
	if s.status == Present {
		return wakers
	}
	same := s.err != nil && *s.err == *err
	s.status, s.err = Failed, err
	if same {
		return wakers
	}
	return s.tell(wakers)
}

func (s *Set) removeAllBut(changes []Change) (changed bool) {
	keep := make(map[string]struct{}, len(changes))
	for _, c := range changes {
		// What could not be had anew is not gone.
		if c.Resource != nil || c.Err != nil {
			keep[c.Name] = struct{}{}
		}
	}
	before := s.seq
	for m := s.order.front; m != nil; {
		next := m.next // put moves m to the back
		if _, ok := keep[m.key]; !ok && m.resource != nil {
			s.put(m.key, nil)
			changed = true
		}
		if next == nil || next.seq > before {
			break
		}
		m = next
	}
	return changed
}

// sweep forgets the removed members that nobody needs to be told of any more:
// a watcher needs it who has taken the member's coming, but not its going. So
// what is remembered for one who does not read is at most the members that it
// knows, however many have come and gone since.
func (s *Set) sweep() {
	positions := make([]uint64, 0, len(s.watchers))
	for _, w := range s.watchers {
		positions = append(positions, w.(interface{ position() uint64 }).position())
	}
	slices.Sort(positions)
	positions = slices.Compact(positions)
	for m := s.order.front; m != nil; {
		next := m.next
		if m.resource == nil {
			i, _ := slices.BinarySearch(positions, m.born)
			if i == len(positions) || positions[i] >= m.seq {
				s.order.remove(m)
				delete(s.members, m.key)
				m.seq = 0
			}
		}
		m = next
	}
	s.sweepAt = max(minSweep, 2*(len(s.members)-s.present))
}

// digest is a resource's part in the hash over a set: the sum over all members
// is the same in whatever order they came, and follows a change at the cost of
// what changed.
func digest(r *Resource) uint64 {
	h := xxhash.NewWithSeed(r.hash)
	_, _ = h.WriteString(r.name)
	return h.Sum64()
}

// order is a doubly linked list of members by their last change, oldest first.
type order struct{ front, back *member }

func (o *order) pushBack(m *member) {
	m.prev, m.next = o.back, nil
	if o.back == nil {
		o.front = m
	} else {
		o.back.next = m
	}
	o.back = m
}

func (o *order) remove(m *member) {
	if m.prev == nil {
		o.front = m.next
	} else {
		m.prev.next = m.next
	}
	if m.next == nil {
		o.back = m.prev
	} else {
		m.next.prev = m.prev
	}
	m.prev, m.next = nil, nil
}
