package downstream

import (
	"math"

	"github.com/xds-relay/xds-relay/cache"
)

// membership is a client's place in a group of clients that ask for the same names: it is
// subscribed to all of them but those that it has taken, each of which is a nameSub. Whatever
// is asked or done about one name takes it first (nameTable.get).
type membership struct {
	member
	subs  *subscriptions
	group nameGroup
	// told: the client was told everything up to that change. 0 is nothing.
	told   uint64
	taken  nameBits
	nTaken int
	// mayHold: the client may hold any of them from an earlier stream.
	mayHold bool
}

// joinGroup subscribes to the names of a list as one of those that do, and says whether that
// is possible. Nothing else is subscribed to.
func (s *subscriptions) joinGroup(list sharedNames, mayHold bool) bool {
	first, err := s.lookUp(byName(list.all()[0]))
	if err != nil || first.Scope.Derived != "" || first.IsSet() {
		return false
	}
	g := list.group(groupKind{first: first, form: s.sharedForm(), sotw: s.sotw}, s, s.topics.Cache())
	if g == nil {
		return false
	}
	m := &membership{member: member{host: s.host}, subs: s, group: g, mayHold: mayHold}
	bytes, odd := g.enter(&m.member)
	tooLarge := bytes+responseOverhead+len(s.typeURL) > s.limit // for one response
	if s.host.enter(first) != nil || tooLarge {
		g.leave(&m.member) // each name is told, or refused, by itself
		return false
	}
	if mayHold && !g.resumed.Swap(true) {
		for i := range g.watches {
			s.topics.Resume(g.watches[i].Entry())
		}
	}
	s.named.shared = m
	s.topics.Include(m.entry(0))
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
		return s.form & (cache.WithTTL | cache.Wrapped)
	}
	return s.form & cache.WithTTL
}

// means implements meaning. Of old-style names that is so for all clients if it is so for one:
// see meanings.
func (s *subscriptions) means(names []string, first cache.Key) bool {
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
	e, _, _ := m.group.toldAt(i, math.MaxUint64)
	return e
}

// len is how many names are not taken.
func (m *membership) len() int {
	if m == nil {
		return 0
	}
	return len(m.group.list().all()) - m.nTaken
}

func (m *membership) has(i uint32) bool { return !m.taken.has(i) }

// find returns the place of a name that is not taken.
func (m *membership) find(key string) (i uint32, ok bool) {
	if m == nil {
		return 0, false
	}
	i, ok = m.group.list().place(key)
	return i, ok && m.has(i)
}

// holdsNot says that the client is subscribed to a name as one of the group, and was told
// nothing of it.
func (m *membership) holdsNot(key string) bool {
	i, ok := m.find(key)
	if !ok {
		return false
	}
	_, mark, _ := m.group.toldAt(i, m.told)
	return mark == 0
}

// take has the client watch a name by itself, and returns its subscription.
func (m *membership) take(i uint32) *nameSub {
	s := m.subs
	sub, entry := s.newSub(), m.entry(i)
	if m.told == 0 {
		if _, withheld := s.topics.Join(entry.Key(), sub.watch()); withheld != nil {
			sub.makeRare().withheld = withheld
		}
	} else {
		s.topics.WatchToo(entry, sub.watch())
	}
	_ = s.host.enter(entry.Key())                 // which the client uses already
	_, mark, changed := m.group.toldAt(i, m.told) // now that it is watched
	if mark != 0 {
		sub.setTold(toldResource)
		sub.Note = mark
		if s.took != nil {
			s.took(sub)
		}
	}
	sub.set(mayHold, m.mayHold)
	m.taken.set(i, len(m.group.list().all()))
	m.nTaken++
	s.named.add(sub)
	if changed {
		sub.moveToPending()
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
	for i := range m.group.list().all() {
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
	m.subs.topics.Exclude(first)
	m.subs.host.leave(first.Key())
	m.group.leave(&m.member)
}

// takeOdd takes the names that have become odd. The cache is held.
func (s *subscriptions) takeOdd() {
	m := s.named.shared
	if !m.behind() {
		return
	}
	for _, i := range m.group.newsSince(m.told).odd {
		if s.named.shared == m && m.has(i) {
			m.take(i)
		}
	}
}

// behind says that there may be something to tell.
func (m *membership) behind() bool { return m != nil && m.told != m.group.newest() }

// tell adds to r what is new to the client. The cache is held.
func (m *membership) tell(r *response) {
	if !m.behind() {
		return
	}
	s, n := m.subs, m.group.newsSince(m.told)
	switch {
	case n.size+responseOverhead+len(r.typeURL) > s.limit && len(n.names) > 1:
		m.takeAll() // each is told by itself
		return
	case m.nTaken == 0:
		r.addNews(n)
	default:
		for k, i := range n.names {
			if m.has(i) {
				s.addShared(r, m.group.list().all()[i], n.states[k])
			}
		}
	}
	m.told = n.to
}

// addNews adds what is told to all clients of a group that were told the same before. The
// response is empty.
func (r *response) addNews(n *groupNews) {
	if len(n.names) == 0 {
		return
	}
	r.resources = n.parts[:len(n.parts):len(n.parts)] // who appends has another
	r.size, r.count, r.substantial = r.size+n.size, len(n.names), true
	r.names = n.told
	r.changed = n.clusters
	var origin *cache.OriginVersion
	for k, st := range n.states {
		if k == 0 || st.Origin != origin {
			origin = st.Origin
			r.from(origin)
		}
	}
}

// addShared adds one of a group's resources to r.
func (s *subscriptions) addShared(r *response, name string, st *cache.State) {
	if s.sotw {
		r.addSotW(name, st.Resource, s.sharedForm())
	} else {
		r.addDelta(name, st.Resource, s.sharedForm())
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
	return m.group.held(m.taken)
}
