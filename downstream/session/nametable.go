package session

import (
	"iter"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/propagation"
)

func (t *nameTable) len() int { return t.table.Len() + t.shared.len() }

// get returns the subscription under a key, nil if there is none.
func (t *nameTable) get(key string) *nameSub {
	if sub, found := t.table.Get(key, (*nameSub).key); found {
		return sub
	}
	if i, ok := t.shared.find(key); ok {
		return t.shared.take(i)
	}
	return nil
}

// add adds a subscription whose key is not in the table.
func (t *nameTable) add(sub *nameSub) { t.table.Put(sub.key(), sub, (*nameSub).key) }

// expect makes room for n more.
func (t *nameTable) expect(n int) { t.table.Reserve(t.table.Len()+n, (*nameSub).key) }

// remove removes a subscription that is in the table.
func (t *nameTable) remove(sub *nameSub) { t.table.Remove(sub.key(), (*nameSub).key) }

// all iterates over the subscriptions, in no order. None may be added or removed during the iteration. It ends the
// sharing: afterwards, every name that was shared is in the table.
func (t *nameTable) all() iter.Seq[*nameSub] {
	return func(yield func(*nameSub) bool) {
		if t.shared != nil {
			t = t.shared.takeAll()
		}
		t.table.All()(yield)
	}
}

// own iterates over the subscriptions that are not shared, in no order. None may be added or removed during the
// iteration.
func (t *nameTable) own() iter.Seq[*nameSub] { return t.table.All() }

// entry returns a name's entry, on the client's side.
func (m *membership) entry(i uint32) *cache.Entry {
	e, _, _ := m.group.SentAt(i, Position{}, m.OnNew)
	return e
}

// first returns the first name's entry, on the accepted side.
func (m *membership) first() *cache.Entry { return m.group.First() }

// len returns how many names are not taken.
func (m *membership) len() int {
	if m == nil {
		return 0
	}
	return len(m.group.List().All()) - int(m.nTaken)
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

// holdsNothing reports that the client shares a name with the group, and was sent nothing of it.
func (m *membership) holdsNothing(key string) bool {
	i, ok := m.find(key)
	if !ok {
		return false
	}
	_, mark, _ := m.group.SentAt(i, m.sentUpTo, m.OnNew)
	return mark == 0 && m.before.of(i) == 0
}

// take has the client watch a name individually, and returns its subscription.
func (m *membership) take(i uint32) *nameSub {
	s := m.subs
	sub, entry := s.newSub(), m.entry(i)
	if m.sentUpTo.Seq == 0 {
		if _, withheld := s.Topics.WatchInGroup(entry.Key(), sub.watch()); withheld != nil {
			sub.makeRare().withheld = withheld
		}
	} else {
		s.Topics.WatchEntry(entry, sub.watch())
	}
	_ = s.Host.Enter(entry.Key())                              // the client uses it already
	_, mark, changed := m.group.SentAt(i, m.sentUpTo, m.OnNew) // after the watch has begun
	if before := m.before.take(i); mark == 0 && before != 0 {
		mark, changed = before, true
	}
	if mark != 0 {
		sub.setSent(sentResource)
		sub.Note = mark
		s.noteTaken(sub, m, i)
		s.form.takenOut(sub)
	}
	sub.set(mayHold, m.mayHold)
	m.taken.set(i, len(m.group.List().All()))
	m.nTaken++
	s.addName(sub)
	if changed {
		sub.MoveToPending()
	}
	if m.len() == 0 && s.named.shared == m { // the name may have taken others with it
		m.leave()
	}
	return sub
}

// giveUp records that the client has unsubscribed from a name. m may be nil.
func (m *membership) giveUp(key string) {
	if m == nil {
		return
	}
	list := m.group.List()
	if i, ok := list.Place(key); ok && !m.GaveUp.Has(i) {
		m.GaveUp.set(i, len(list.All()))
		m.group.GiveUp(i)
	}
}

// takeAll takes all names, which ends the membership, and returns the table that has them.
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

// leaveGroup ends the membership, if there is one: each name is watched individually.
func (s *subscriptions) leaveGroup() {
	if m := s.named.shared; m != nil {
		m.takeAll()
	}
}

// leave ends the membership.
func (m *membership) leave() {
	m.subs.named.shared = nil
	first := m.first()
	if s := m.subs; m.OnNew && s.sides != nil && s.sides.leftSide == nil {
		s.sides.leftSide = first // the cache may be held, and all names may be watched on the new side
	} else {
		s.Topics.Exclude(first)
	}
	m.subs.Host.Leave(first.Key())
	m.leaveMembers()
}

// leaveMembers removes the client from the group's members. What it was owed as a member, it is still owed.
func (m *membership) leaveMembers() {
	m.subs.owed.AddAll(m.group.Leave(&m.Member, m.sentUpTo.Seq))
}

// owed returns the changes that count the client and that it was not sent.
func (m *membership) owed() *propagation.List {
	return m.group.ChangesSince(max(m.sentUpTo.Seq, m.Since), m.OnNew)
}

// sharedForm is the form in which a client is sent what it shares.
func (s *subscriptions) sharedForm() cache.Form {
	if s.sotw {
		return s.Form & (cache.WithTTL | cache.Wrapped)
	}
	return s.Form & cache.WithTTL
}

// Class implements Meaning.
func (s *subscriptions) Class() uint64 {
	if s.Rights == nil {
		return 0
	}
	return s.Rights.Class()
}

// Configuration implements Meaning.
func (s *subscriptions) Configuration() uint32 { return s.Generation }

// MayHaveAll implements Meaning.
func (s *subscriptions) MayHaveAll(names []string, first cache.Key) bool {
	return s.Rights == nil || s.Rights.MayHaveAll(names, first)
}

// Means implements Meaning. If it is true of old-style names for one client of a class, it is true for all clients of
// that class: see Names.
func (s *subscriptions) Means(names []string, first cache.Key) bool {
	for i, name := range names {
		yieldAfter(i)
		want := first
		want.Name = name
		if key, err := s.lookUp(refByName(name)); err != nil || key != want || key.IsSet() {
			return false
		}
	}
	return true
}

// expect makes room for n new subscriptions to names.
func (s *subscriptions) expect(n int) {
	const few, many = 4, 1 << 10 // beyond many, the client may exceed a limit
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

// nameChanged is the Changed function of everything that the client watches individually.
func (s *subscriptions) nameChanged(w *cache.Watch) cache.Waker {
	s.owed.Add(w.Change())
	return s.Host.Mark((*nameSub)(w))
}

func (s *subscriptions) newSub() *nameSub {
	if s.audience == nil {
		s.audience = &cache.WatchGroup{Owner: s, IgnoreHeartbeats: s.Form&cache.WithTTL == 0, Polls: s.polls, Changed: s.nameChanged}
	}
	if len(s.slab) == 0 {
		return &nameSub{Group: s.audience}
	}
	sub := &s.slab[0]
	sub.Group, s.slab = s.audience, s.slab[1:]
	return sub
}

// noteTaken records how the client has answered the resource of a name that it takes out of the group.
func (s *subscriptions) noteTaken(sub *nameSub, m *membership, i uint32) {
	answered := !m.sentIn.after(s.settled) // it may be the response that is being put together
	if answered && !s.nacks.any() {
		return
	}
	at, flight := m.group.ChangedAt(i, m.OnNew), m.inFlight()
	if !answered && flight.has(at) {
		sub.setSentIn(m.sentIn)
	}
	if s.nacks.find(nil, func(p *span) bool { return p.has(at) }, sub.name()) != nil || s.nacks.standsFor(sub.name()) {
		sub.Own[ownSent] |= isRejectedBit
	}
}

// of returns the mark of what the client holds of a name, 0 for nothing.
func (h *heldNames) of(i uint32) uint64 {
	if h == nil {
		return 0
	}
	return h.marks[i]
}

// take returns the mark, and forgets it: the client is sent something of the name.
func (h *heldNames) take(i uint32) uint64 {
	mark := h.of(i)
	if mark != 0 {
		h.marks[i] = 0
		h.left--
	}
	return mark
}
