package cache

import (
	"slices"

	"github.com/cespare/xxhash/v2"
)

// How a set takes updates, and what it forgets.

// put takes a member's new state, and says whether clients would notice.
func (s *Set) put(key string, r *Resource) bool {
	m := s.members[key]
	switch {
	case m == nil && r == nil, m != nil && m.removed && r == nil:
		return false
	case m == nil:
		m = &member{key: key, born: s.seq + 1}
		s.members[key] = m
	case !m.removed && r != nil && m.resource.hash == r.hash:
		if m.resource.name == r.name {
			m.resource = r // of another version, perhaps
		}
		return false
	default:
		s.order.remove(m)
		if !m.removed {
			s.present--
			s.sum -= digest(m.resource)
		}
	}
	s.seq++
	m.seq, m.removed = s.seq, r == nil
	s.order.pushBack(m)
	if r != nil {
		m.resource = r
		s.present++
		s.sum += digest(r)
	}
	s.body, s.extended = nil, extended{}
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
	if u.Full {
		s.failed = nil
	}
	for _, c := range u.Changes {
		if c.Err == nil || c.Gone {
			delete(s.failed, c.Name)
			changed = s.put(c.Name, c.Resource) || changed
		} else if m := s.members[c.Name]; m == nil || m.removed {
			if s.failed == nil {
				s.failed = map[string]struct{}{}
			}
			s.failed[c.Name] = struct{}{}
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
		if c.Resource != nil || c.Err != nil && !c.Gone {
			keep[c.Name] = struct{}{}
		}
	}
	before := s.seq
	for m := s.order.front; m != nil; {
		next := m.next // put moves m to the back
		if _, ok := keep[m.key]; !ok && !m.removed {
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
	positions := make([]uint64, 0, 2*len(s.watchers))
	for _, w := range s.watchers {
		positions = append(positions, w.(SetWatcher).positions()...)
	}
	slices.Sort(positions)
	positions = slices.Compact(positions)
	for m := s.order.front; m != nil; {
		next := m.next
		if m.removed {
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

// digest is a member's part in the hash over a set: the sum over all members is
// the same in whatever order they came, and follows a change at the cost of what
// changed.
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
