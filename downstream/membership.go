package downstream

import (
	"github.com/xds-relay/xds-relay/cache"
)

// membership is a client's place in a group of clients that ask for the same names: it is
// subscribed to all of them but those that it has taken, each of which is a nameSub. Whatever
// is asked or done about one name takes it first (nameTable.get).
type membership struct {
	subs  *subscriptions
	group *nameGroup
	index int // in group.members; guarded by group.mu
	// told: the client was told everything up to that change. 0 is nothing.
	told uint64
	// taken has a bit for each name; nil before the first.
	taken  []uint64
	nTaken int
	// mayHold: the client may hold any of them from an earlier stream.
	mayHold bool
}

// joinGroup subscribes to the names of a list as one of those that do, and says whether that
// is possible. Nothing else is subscribed to.
func (s *subscriptions) joinGroup(list *askedList, mayHold bool) bool {
	first, err := s.lookUp(byName(list.names[0]))
	if err != nil || first.Scope.Derived != "" || first.IsSet() {
		return false
	}
	g := list.groupOf(s, first)
	if g == nil {
		return false
	}
	m := &membership{subs: s, group: g, mayHold: mayHold}
	g.add(m)
	if s.scopes.enter(first) != nil || g.tooLarge(s.limit) {
		g.remove(m) // each name is told, or refused, by itself
		return false
	}
	if mayHold && !g.resumed.Swap(true) {
		for i := range g.watches {
			s.topics.Resume(g.watches[i].Entry())
		}
	}
	s.named.shared = m
	s.topics.Include(g.watches[0].Entry())
	for _, i := range g.odd() {
		if m.has(i) {
			m.take(i)
		}
	}
	return true
}

// tooLarge says that not all resources may fit into one response.
func (g *nameGroup) tooLarge(limit int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.bytes+responseOverhead+len(g.kind.first.TypeURL) > limit
}

// len is how many names are not taken.
func (m *membership) len() int {
	if m == nil {
		return 0
	}
	return len(m.group.names) - m.nTaken
}

func (m *membership) has(i uint32) bool {
	return m.taken == nil || m.taken[i/64]&(1<<(i%64)) == 0
}

// find returns the place of a name that is not taken.
func (m *membership) find(key string) (i uint32, ok bool) {
	if m == nil {
		return 0, false
	}
	i, ok = m.group.list.index()[key]
	return i, ok && m.has(i)
}

// holdsNot says that the client is subscribed to a name as one of the group, and was told
// nothing of it.
func (m *membership) holdsNot(key string) bool {
	i, ok := m.find(key)
	if !ok {
		return false
	}
	mark, _ := m.group.toldAt(i, m.told)
	return mark == 0
}

// take has the client watch a name by itself, and returns its subscription.
func (m *membership) take(i uint32) *nameSub {
	s, g := m.subs, m.group
	sub, entry := s.newSub(), g.watches[i].Entry()
	if m.told == 0 {
		if _, withheld := s.topics.Join(entry.Key(), sub.watch()); withheld != nil {
			sub.makeRare().withheld = withheld
		}
	} else {
		s.topics.WatchToo(entry, sub.watch())
	}
	_ = s.scopes.enter(entry.Key()) // which the client uses already
	mark, changed := g.toldAt(i, m.told)
	if mark != 0 {
		sub.setTold(toldResource)
		sub.Note = mark
		if s.took != nil {
			s.took(sub)
		}
	}
	sub.set(mayHold, m.mayHold)
	if m.taken == nil {
		m.taken = make([]uint64, (len(g.names)+63)/64)
	}
	m.taken[i/64] |= 1 << (i % 64)
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
	for i := range m.group.names {
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
	m.subs.topics.Exclude(m.group.watches[0].Entry())
	m.subs.scopes.leave(m.group.kind.first)
	m.group.remove(m)
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
func (m *membership) behind() bool { return m != nil && m.told != m.group.seq.Load() }

// tell adds to r what is new to the client. The cache is held.
func (m *membership) tell(r *response) {
	if !m.behind() {
		return
	}
	g, s := m.group, m.subs
	n := g.newsSince(m.told)
	switch {
	case n.size+responseOverhead+len(r.typeURL) > s.limit && len(n.names) > 1:
		m.takeAll() // each is told by itself
		return
	case m.nTaken == 0:
		r.addNews(n)
	default:
		for k, i := range n.names {
			if m.has(i) {
				r.addOf(n.states[k], g.list.names[i], g.kind)
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

// addOf adds one of a group's resources.
func (r *response) addOf(st *cache.State, name string, kind groupKind) {
	if kind.sotw {
		r.addSotW(name, st.Resource, kind.form)
	} else {
		r.addDelta(name, st.Resource, kind.form)
	}
	r.from(st.Origin)
	r.noteChanged(st.Resource)
}

// common returns the version of the origin that all of those have which the client holds as
// one of the group, nil if they have not one. The cache is held.
func (m *membership) common() *cache.OriginVersion {
	if m.nTaken == 0 {
		return m.group.common()
	}
	var origin *cache.OriginVersion
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.names {
		if g.names[i].mark == 0 || !m.has(uint32(i)) {
			continue
		}
		o := g.watches[i].Entry().Snapshot().Origin
		if origin == nil {
			origin = o
		}
		if !o.Same(origin) {
			return nil
		}
	}
	return origin
}

// held is how many resources the client holds of what it is subscribed to as one of
// the group, and the sum of their digests. It was told everything.
func (m *membership) held() (n int, sum uint64) {
	if m == nil {
		return 0, 0
	}
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	n, sum = g.held, g.sum
	if m.nTaken == 0 {
		return n, sum
	}
	for i := range g.names {
		if mark := g.names[i].mark; mark != 0 && !m.has(uint32(i)) {
			n--
			sum -= digestOf(mark, g.list.names[i])
		}
	}
	return n, sum
}
