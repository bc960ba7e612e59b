package session

import (
	"math"

	"github.com/xds-relay/xds-relay/cache"
)

// membership is a client's place in a group of clients that ask for the same names: it is
// subscribed to all of them but those that it has taken, each of which is a nameSub. Whatever
// is asked or done about one name takes it first (nameTable.get).
type membership struct {
	Member
	subs  *subscriptions
	group WatchGroup
	// told: the client was told everything up to that change. 0 is nothing.
	told   uint64
	taken  NameBits
	nTaken int
	// mayHold: the client may hold any of them from an earlier stream.
	mayHold bool
}

// joinGroup subscribes to the names of a list as one of those that do, and says whether that
// is possible. Nothing else is subscribed to.
func (s *subscriptions) joinGroup(list NameList, mayHold bool) bool {
	first, err := s.lookUp(byName(list.All()[0]))
	if err != nil || first.Scope.Derived != "" || first.IsSet() {
		return false
	}
	g := list.Group(GroupKind{First: first, Form: s.sharedForm(), SotW: s.sotw}, s, s.Topics.Cache())
	if g == nil {
		return false
	}
	m := &membership{Member: Member{Host: s.Host}, subs: s, group: g, mayHold: mayHold}
	bytes, odd := g.Enter(&m.Member)
	tooLarge := bytes+responseOverhead+len(s.typeURL) > s.Limit // for one response
	if s.Host.Enter(first) != nil || tooLarge {
		g.Leave(&m.Member) // each name is told, or refused, by itself
		return false
	}
	if mayHold {
		g.Resume(s.Topics)
	}
	s.named.shared = m
	s.Topics.Include(m.entry(0))
	for _, i := range odd {
		if m.has(i) {
			m.take(i)
		}
	}
	return true
}

// sharedForm is how a client is told what it shares.
func (s *subscriptions) sharedForm() cache.Form {
	if s.sotw {
		return s.Form & (cache.WithTTL | cache.Wrapped)
	}
	return s.Form & cache.WithTTL
}

// Means implements meaning. Of old-style names that is so for all clients if it is so for one:
// see meanings.
func (s *subscriptions) Means(names []string, first cache.Key) bool {
	for _, name := range names {
		want := first
		want.Name = name
		if key, err := s.lookUp(byName(name)); err != nil || key != want || key.IsSet() {
			return false
		}
	}
	return true
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

// holdsNot says that the client is subscribed to a name as one of the group, and was told
// nothing of it.
func (m *membership) holdsNot(key string) bool {
	i, ok := m.find(key)
	if !ok {
		return false
	}
	_, mark, _ := m.group.SentAt(i, m.told)
	return mark == 0
}

// take has the client watch a name by itself, and returns its subscription.
func (m *membership) take(i uint32) *nameSub {
	s := m.subs
	sub, entry := s.newSub(), m.entry(i)
	if m.told == 0 {
		if _, withheld := s.Topics.Join(entry.Key(), sub.watch()); withheld != nil {
			sub.makeRare().withheld = withheld
		}
	} else {
		s.Topics.WatchToo(entry, sub.watch())
	}
	_ = s.Host.Enter(entry.Key())                 // which the client uses already
	_, mark, changed := m.group.SentAt(i, m.told) // now that it is watched
	if mark != 0 {
		sub.setTold(toldResource)
		sub.Note = mark
		if s.took != nil {
			s.took(sub)
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

// apart ends a membership, if there is one: each name is watched by itself.
func (s *subscriptions) apart() {
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

// TakeOdd takes the names that have become odd. The cache is held.
func (s *subscriptions) TakeOdd() {
	m := s.named.shared
	if !m.behind() {
		return
	}
	for _, i := range m.group.NewsSince(m.told).Odd {
		if s.named.shared == m && m.has(i) {
			m.take(i)
		}
	}
}

// behind says that there may be something to tell.
func (m *membership) behind() bool { return m != nil && m.told != m.group.Newest() }

// tell adds to r what is new to the client. The cache is held.
func (m *membership) tell(r *Response) {
	if !m.behind() {
		return
	}
	s, n := m.subs, m.group.NewsSince(m.told)
	switch {
	case n.Size+responseOverhead+len(r.TypeURL) > s.Limit && len(n.Names) > 1:
		m.takeAll() // each is told by itself
		return
	case m.nTaken == 0:
		r.addNews(n)
	default:
		for k, i := range n.Names {
			if m.has(i) {
				s.addShared(r, m.group.List().All()[i], n.States[k])
			}
		}
	}
	m.told = n.To
}

// addNews adds what is told to all clients of a group that were told the same before. The
// response is empty.
func (r *Response) addNews(n *News) {
	if len(n.Names) == 0 {
		return
	}
	r.Resources = n.Parts[:len(n.Parts):len(n.Parts)] // who appends has another
	r.size, r.Count, r.substantial = r.size+n.Size, len(n.Names), true
	r.Names = n.Sent
	for _, st := range n.States {
		r.noteChanged(st.Resource)
	}
	var origin *cache.OriginVersion
	for k, st := range n.States {
		if k == 0 || st.Origin != origin {
			origin = st.Origin
			r.from(origin)
		}
	}
}

// addShared adds one of a group's resources to r.
func (s *subscriptions) addShared(r *Response, name string, st *cache.State) {
	if s.sotw {
		r.AddSotW(name, st.Resource, s.sharedForm())
	} else {
		r.AddDelta(name, st.Resource, s.sharedForm())
	}
	r.from(st.Origin)
	r.noteChanged(st.Resource)
}

// held is how many resources the client holds of what it is subscribed to as one of
// the group, and the sum of their digests. It was told everything.
func (m *membership) held() (n int, sum uint64) {
	if m == nil {
		return 0, 0
	}
	return m.group.Held(m.taken)
}
