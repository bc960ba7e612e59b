package downstream

import (
	"iter"
	"sync/atomic"
	"weak"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/propagation"
)

// The sides of a group in a rollout. Clients of a group move to the new side of a rollout and back without
// a watch of their own: the group watches the names that differ there, once for all of them.
//
//   - Both sides have the same names, and one log of changes. A name that does not differ is the same on both,
//     so a change of it is one for both.
//   - A client's position in the log has a side. What is new to a client that has moved is what it holds at its
//     position, compared with what there is on the other side: the same for all clients that move from there, in one
//     buffer.
//   - The first client on the new side has the group watch what differs. Until a topic there is filled,
//     its name is as on the accepted side. The last one that leaves the side ends these watches.

// side is one of the sides of a group.
type side uint8

const (
	accepted side = iota
	rolledOut
	nSides
)

func sideOf(onNew bool) side {
	if onNew {
		return rolledOut
	}
	return accepted
}

// sides are some of the sides, as bits.
type sides uint8

const both sides = 1<<nSides - 1

func only(s side) sides { return 1 << s }

func (in sides) has(s side) bool { return in&(1<<s) != 0 }

func (in sides) each() iter.Seq[side] {
	return func(yield func(side) bool) {
		for s := range nSides {
			if in.has(s) && !yield(s) {
				return
			}
		}
	}
}

// groupSide is what a group has of one side. watchGroup.mu guards it, but for audience and newest.
type groupSide struct {
	audience cache.WatchGroup
	// newest is the number of the last change. It does not change while the cache is held; on the new
	// side it does when more names are watched there.
	newest  atomic.Uint64
	members []*session.Member
	// changes are those that are measured.
	changes propagation.Numbered
	// waking: somebody is to wake the members, and has not begun.
	waking bool
	// nHeld is how many names have a resource and are not individual, bytes are theirs, and sum is
	// the sum of their digests. SotW.
	nHeld int
	bytes int
	sum   uint64
	// fresh is for clients that come, news for those that were sent all but the newest, and moved for those
	// that come from the other side.
	fresh, news, moved weak.Pointer[session.News]
	common             commonOrigin
}

// commonOrigin is the version of the origin that all had which are held, as of a change, as long as none has
// left it.
type commonOrigin struct {
	origin *cache.OriginVersion
	seq    uint64
	left   uint32
}

// kept returns where the news are kept for clients at a position.
func (s *groupSide) kept(at session.Position, onNew bool) *weak.Pointer[session.News] {
	switch {
	case at.Seq == 0:
		return &s.fresh
	case at.New != onNew:
		return &s.moved
	}
	return &s.news
}

// newName is a name that is watched on the new side as well.
type newName struct {
	watch cache.Watch
	entry *cache.Entry
	nameState
	// filled: the new side has an answer, so the name counts there.
	filled bool
}

// differs reports whether a name is something of its own on the new side. The caller holds mu.
func (g *watchGroup) differs(i int) bool {
	n := g.differing[uint32(i)] //nolint:gosec // a request has fewer
	return n != nil && n.filled
}

// on returns what a name is on a side. The caller holds mu.
func (g *watchGroup) on(s side, i uint32) *nameState {
	if s == rolledOut && g.differs(int(i)) {
		return &g.differing[i].nameState
	}
	return &g.names[i].nameState
}

// entry returns the entry that has what a name is on a side. The caller holds mu.
func (g *watchGroup) entry(s side, i uint32) *cache.Entry {
	if s == rolledOut && g.differs(int(i)) {
		return g.differing[i].entry
	}
	return g.watches[i].Entry()
}

// watched returns the entry that a client of a side watches for a name. The caller holds mu.
func (g *watchGroup) watched(s side, i uint32) *cache.Entry {
	if n := g.differing[i]; s == rolledOut && n != nil {
		return n.entry
	}
	return g.watches[i].Entry()
}

// differingSince yields the names that differ between the sides, and have not changed on that of a position
// since: each once. The caller holds mu.
func (g *watchGroup) differingSince(at session.Position, yield func(uint32)) {
	for i := range g.differing {
		if g.differs(int(i)) && g.names[i].seqs[sideOf(at.New)] <= at.Seq {
			yield(i)
		}
	}
}

// changedNew is changed for the new side.
func (g *watchGroup) changedNew(w *cache.Watch) cache.Waker {
	st := w.Entry().State()
	g.mu.Lock()
	defer g.mu.Unlock()
	i := placeOf(w)
	if n := g.differing[uint32(i)]; n == nil || &n.watch != w { //nolint:gosec // a request has fewer
		return nil // it is not watched any more
	}
	in := g.noteNew(i, &st)
	g.measure(w, in)
	return g.toWake(in)
}

// measure notes for the clients of some sides that the change is measured. The caller holds mu.
func (g *watchGroup) measure(w *cache.Watch, in sides) {
	for s := range in.each() {
		g.sides[s].changes.Add(w.Change(), g.seq, len(g.sides[s].members))
	}
}

// noteNew notes what a name is on the new side, and returns for which sides that is a change. The caller
// holds mu.
func (g *watchGroup) noteNew(i int, st *cache.State) sides {
	n := g.differing[uint32(i)] //nolint:gosec // a request has fewer
	if !n.filled && st.Status == cache.Requested {
		return 0
	}
	g.setNew(i, func() { n.nameState, n.filled = g.look(i, st), true })
	return only(rolledOut)
}

// setNew notes that a name changes on the new side. The caller holds mu.
func (g *watchGroup) setNew(i int, change func()) {
	at := uint32(i) //nolint:gosec // a request has fewer
	was := *g.on(rolledOut, at)
	g.count(rolledOut, i, was, -1)
	change()
	g.count(rolledOut, i, *g.on(rolledOut, at), 1)
	g.names[i].seqs[rolledOut] = g.record(i, only(rolledOut), was.mark)
}

// enter adds a client to a side. The caller holds mu.
func (g *watchGroup) enter(m *session.Member, s side) {
	of := &g.sides[s]
	m.Index, m.OnNew, m.Since = int32(len(of.members)), s == rolledOut, g.seq //nolint:gosec // there are fewer clients
	of.members = append(of.members, m)
	g.countClients()
}

// leave takes a client from its side. The caller holds mu.
func (g *watchGroup) leave(m *session.Member) {
	of := &g.sides[sideOf(m.OnNew)]
	end := len(of.members) - 1
	of.members[m.Index] = of.members[end]
	of.members[m.Index].Index = m.Index
	of.members[end] = nil
	of.members = of.members[:end]
	if cap(of.members) > minLog && 4*end < cap(of.members) {
		of.members = append(make([]*session.Member, 0, 2*end), of.members...)
	}
	g.countClients()
}

// countClients says to the cache how many clients the watches are for. The caller holds mu.
func (g *watchGroup) countClients() {
	onNew := len(g.sides[rolledOut].members)
	g.sides[accepted].audience.Clients.Store(int64(len(g.sides[accepted].members) + onNew))
	g.sides[rolledOut].audience.Clients.Store(int64(onNew))
}

// ShowNew implements the stream's typeSession.WatchGroup.
func (g *watchGroup) ShowNew(m *session.Member, after uint64, names []string, all bool) (e *cache.Entry, owed *propagation.List) {
	g.moving.Lock()
	defer g.moving.Unlock()
	if all {
		names = g.of.names
	}
	for _, name := range names {
		if i, ok := g.of.Place(name); ok {
			g.watchNew(i)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.differing {
		e = n.entry
		break
	}
	if e != nil && !m.OnNew {
		owed = g.move(m, rolledOut, after)
	}
	return e, owed
}

// move has a client change sides, and returns the changes that count it where it was. The caller holds mu and moving.
func (g *watchGroup) move(m *session.Member, to side, after uint64) (owed *propagation.List) {
	owed = g.sides[sideOf(m.OnNew)].changes.Since(max(after, m.Since))
	g.leave(m)
	g.enter(m, to)
	return owed
}

// watchNew watches a name on the new side, if that is not so already. The caller holds moving.
func (g *watchGroup) watchNew(i uint32) {
	g.mu.Lock()
	n := g.differing[i]
	g.mu.Unlock()
	if n != nil {
		return
	}
	n = &newName{}
	n.watch.Group = &g.sides[rolledOut].audience
	setPlace(&n.watch, int(i))
	key := g.kind.First
	key.Name, key.Scope.New = g.of.names[i], true
	n.entry, _ = g.topics.WatchInGroup(key, &n.watch)
	if wake := g.beginNew(i, n); wake != nil {
		wake.Wake()
	}
}

// beginNew has a name be watched on the new side. What changes after that is noted.
func (g *watchGroup) beginNew(i uint32, n *newName) cache.Waker {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.differing == nil {
		g.differing = map[uint32]*newName{}
	}
	g.differing[i] = n
	st := n.entry.State()
	return g.toWake(g.noteNew(int(i), &st))
}

// ShowAccepted implements the stream's typeSession.WatchGroup.
func (g *watchGroup) ShowAccepted(m *session.Member, after uint64) (owed *propagation.List) {
	g.moving.Lock()
	defer g.moving.Unlock()
	g.mu.Lock()
	owed = g.move(m, accepted, after)
	var ended map[uint32]*newName
	if len(g.sides[rolledOut].members) == 0 {
		ended = g.endNew()
	}
	g.mu.Unlock()
	for _, n := range ended {
		g.topics.Unwatch(&n.watch)
	}
	return owed
}

// endNew has all names be on the new side as they are on the accepted one. It returns those that were watched
// there. The caller holds mu.
func (g *watchGroup) endNew() (ended map[uint32]*newName) {
	for i := range g.differing {
		if g.differs(int(i)) {
			g.setNew(int(i), func() { g.differing[i].filled = false })
		}
	}
	ended, g.differing = g.differing, nil
	return ended
}
