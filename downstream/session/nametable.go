package session

import (
	"hash/maphash"
	"iter"
	"math"
	"math/bits"

	"github.com/xds-relay/xds-relay/cache"
)

// tableSeed is one for all: a table of many names is searched under a lock of its
// client alone.
var tableSeed = maphash.MakeSeed()

// A table is at most nine tenths full, and a new one has room for a quarter more
// than is asked for.
const (
	minSlots = 4
	tenths   = 9
)

func slotsFor(n int) int { return max(minSlots, n+n/4) }

// home is where the search for a key begins.
func (t *nameTable) home(key string) int {
	h, _ := bits.Mul64(maphash.String(tableSeed, key), uint64(len(t.slots)))
	return int(h)
}

func (t *nameTable) next(i int) int {
	if i++; i == len(t.slots) {
		return 0
	}
	return i
}

func (t *nameTable) len() int { return t.n + t.shared.len() }

// get returns the subscription under a key, nil if there is none.
func (t *nameTable) get(key string) *nameSub {
	if t.n > 0 {
		for i := t.home(key); t.slots[i] != nil; i = t.next(i) {
			if sub := t.slots[i]; sub.key() == key {
				return sub
			}
		}
	}
	if i, ok := t.shared.find(key); ok {
		return t.shared.take(i)
	}
	return nil
}

// add adds a subscription, under whose key there is none.
func (t *nameTable) add(sub *nameSub) {
	if 10*(t.n+1) > tenths*len(t.slots) {
		t.resize(slotsFor(2 * t.n))
	}
	t.put(sub)
	t.n++
}

func (t *nameTable) put(sub *nameSub) {
	i := t.home(sub.key())
	for t.slots[i] != nil {
		i = t.next(i)
	}
	t.slots[i] = sub
}

// expect makes room for so many more.
func (t *nameTable) expect(n int) {
	if 10*(t.n+n) > tenths*len(t.slots) {
		t.resize(slotsFor(t.n + n))
	}
}

func (t *nameTable) resize(slots int) {
	old := t.slots
	t.slots = make([]*nameSub, slots)
	for _, sub := range old {
		if sub != nil {
			t.put(sub)
		}
	}
}

// remove removes a subscription that is there.
func (t *nameTable) remove(sub *nameSub) {
	hole := t.home(sub.key())
	for t.slots[hole] != sub {
		hole = t.next(hole)
	}
	t.n--
	// What comes after it may be where it is only because this was in the way.
	for i := t.next(hole); t.slots[i] != nil; i = t.next(i) {
		home := t.home(t.slots[i].key())
		if stays := between(hole, home, i); !stays {
			t.slots[hole], hole = t.slots[i], i
		}
	}
	t.slots[hole] = nil
	if few := slotsFor(t.n); 4*few < len(t.slots) {
		t.resize(2 * few)
	}
}

// between says that, going round from just behind a, b comes no later than c.
func between(a, b, c int) bool {
	if a <= c {
		return a < b && b <= c
	}
	return a < b || b <= c
}

// all yields the subscriptions, in no order. None may be added or removed meanwhile.
func (t *nameTable) all() iter.Seq[*nameSub] {
	return func(yield func(*nameSub) bool) {
		for _, sub := range t.whole() {
			if sub != nil && !yield(sub) {
				return
			}
		}
	}
}

// whole are the slots, when none is shared any more.
func (t *nameTable) whole() []*nameSub {
	if t.shared == nil {
		return t.slots
	}
	return t.shared.takeAll().slots
}

// own yields the subscriptions that are not shared, as all does.
func (t *nameTable) own() iter.Seq[*nameSub] {
	return func(yield func(*nameSub) bool) {
		for _, sub := range t.slots {
			if sub != nil && !yield(sub) {
				return
			}
		}
	}
}

func (m *membership) entry(i uint32) *cache.Entry {
	e, _, _ := m.group.SentAt(i, math.MaxUint64)
	return e
}

// len is how many names are not taken.
func (m *membership) len() int {
	if m == nil {
		return 0
	}
	return len(m.group.List().All()) - m.nTaken
}

func (m *membership) has(i uint32) bool { return !m.taken.Has(i) }

// find returns the place of a name that is not taken.
func (m *membership) find(key string) (i uint32, ok bool) {
	if m == nil {
		return 0, false
	}
	i, ok = m.group.List().Place(key)
	return i, ok && m.has(i)
}

// holdsNot says that the client is subscribed to a name as one of the group, and was sent
// nothing of it.
func (m *membership) holdsNot(key string) bool {
	i, ok := m.find(key)
	if !ok {
		return false
	}
	_, mark, _ := m.group.SentAt(i, m.sentUpTo)
	return mark == 0
}

// take has the client watch a name by itself, and returns its subscription.
func (m *membership) take(i uint32) *nameSub {
	s := m.subs
	sub, entry := s.newSub(), m.entry(i)
	if m.sentUpTo == 0 {
		if _, withheld := s.Topics.WatchInGroup(entry.Key(), sub.watch()); withheld != nil {
			sub.makeRare().withheld = withheld
		}
	} else {
		s.Topics.WatchEntry(entry, sub.watch())
	}
	_ = s.Host.Enter(entry.Key())                     // which the client uses already
	_, mark, changed := m.group.SentAt(i, m.sentUpTo) // now that it is watched
	if mark != 0 {
		sub.setSent(sentResource)
		sub.Note = mark
		if s.takenOut != nil {
			s.takenOut(sub)
		}
	}
	sub.set(mayHold, m.mayHold)
	m.taken.set(i, len(m.group.List().All()))
	m.nTaken++
	s.named.add(sub)
	if changed {
		sub.MoveToPending()
	}
	if m.len() == 0 && s.named.shared == m { // the name may have taken others with it
		m.leave()
	}
	return sub
}

// takeAll takes all names, and returns the table that has them: there is no membership any
// more.
func (m *membership) takeAll() *nameTable {
	n := m.len()
	m.subs.expect(n)
	for i := range m.group.List().All() {
		if i := uint32(i); m.has(i) {
			m.take(i)
		}
	}
	m.subs.slab = nil
	return &m.subs.named
}

// leaveGroup ends a membership, if there is one: each name is watched by itself.
func (s *subscriptions) leaveGroup() {
	if m := s.named.shared; m != nil {
		m.takeAll()
	}
}

// leave ends the membership.
func (m *membership) leave() {
	m.subs.named.shared = nil
	first := m.entry(0)
	m.subs.Topics.Exclude(first)
	m.subs.Host.Leave(first.Key())
	m.group.Leave(&m.Member)
}

// sharedForm is how a client is sent what it shares.
func (s *subscriptions) sharedForm() cache.Form {
	if s.sotw {
		return s.Form & (cache.WithTTL | cache.Wrapped)
	}
	return s.Form & cache.WithTTL
}

// Means implements Meaning. Of old-style names that is so for all clients if it is so for one:
// see Names.
func (s *subscriptions) Means(names []string, first cache.Key) bool {
	for _, name := range names {
		want := first
		want.Name = name
		if key, err := s.lookUp(refByName(name)); err != nil || key != want || key.IsSet() {
			return false
		}
	}
	return true
}

// expect prepares for so many new subscriptions to names.
func (s *subscriptions) expect(n int) {
	const few, many = 4, 1 << 10 // beyond which the client may go over a limit
	if n <= few {
		return
	}
	n = min(n, many)
	s.named.expect(n)
	if s.pending == nil {
		s.pending = *s.Host.PendingLists().Get().(*[]*nameSub)
	}
	s.slab = make([]nameSub, n)
}

func (s *subscriptions) newSub() *nameSub {
	if s.audience == nil {
		s.audience = &cache.WatchGroup{Owner: s, IgnoreHeartbeats: s.Form&cache.WithTTL == 0, Changed: func(w *cache.Watch) cache.Waker { return s.Host.Mark((*nameSub)(w)) }}
	}
	if len(s.slab) == 0 {
		return &nameSub{Group: s.audience}
	}
	sub := &s.slab[0]
	sub.Group, s.slab = s.audience, s.slab[1:]
	return sub
}
