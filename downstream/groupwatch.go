package downstream

import (
	"slices"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/propagation"
)

// What the sessions of a group's clients request from it, on both sides of a rollout.

// List implements session.WatchGroup.
func (g *watchGroup) List() session.NameList { return g.of }

// First implements session.WatchGroup.
func (g *watchGroup) First() *cache.Entry { return g.first }

// Enter implements session.WatchGroup.
func (g *watchGroup) Enter(m *session.Member) (bytes int, individual []uint32) {
	g.joinPrefetch(m)
	g.mu.Lock()
	g.enter(m, accepted)
	unwatched := g.unwatched()
	g.mu.Unlock()
	for _, i := range unwatched {
		g.watchAgain(i)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.names {
		if g.names[i].individual {
			individual = append(individual, uint32(i))
		}
	}
	return g.sides[accepted].bytes, individual
}

// Resume implements session.WatchGroup.
func (g *watchGroup) Resume(topics *cache.Reader) {
	if g.resumed.Swap(true) {
		return
	}
	for i := range g.names {
		g.mu.Lock()
		w := g.watches[i]
		if w == nil {
			g.mu.Unlock()
			continue
		}
		e := w.Entry()
		g.mu.Unlock()
		topics.Resume(e)
		if st := e.State(); st.Stale {
			g.note(w, &st)
		}
	}
}

// Leave implements session.WatchGroup. The group ends with the last client.
func (g *watchGroup) Leave(m *session.Member, after uint64) (owed *propagation.List) {
	g.leavePrefetch(m)
	if m.OnNew {
		owed = g.ShowAccepted(m, after)
	}
	g.mu.Lock()
	owed = owed.With(g.sides[accepted].changes.Since(max(after, m.Since)))
	g.leave(m)
	ended := g.takeBack(m.GaveUp)
	g.mu.Unlock()
	if g.of.left(g) {
		g.of.news.Forget(g)
		ended = append(ended, g.watches...)
	}
	for _, w := range ended {
		if w != nil {
			g.topics.Unwatch(w)
		}
	}
	return owed
}

// Wake implements cache.Waker: it wakes the clients on the sides on which something has changed.
func (g *watchGroup) Wake() {
	list := memberLists.Get().(*[]*session.Member)
	all := (*list)[:0]
	g.mu.Lock()
	for s := range g.sides {
		if of := &g.sides[s]; of.waking {
			of.waking = false
			all = append(all, of.members...)
		}
	}
	g.mu.Unlock()
	for i, m := range all {
		if in := &m.Host.(*stream).inbox; in.wake() {
			in.waker.Wake()
		}
		all[i] = nil
	}
	*list = all
	memberLists.Put(list)
}

// Newest implements session.WatchGroup.
func (g *watchGroup) Newest(onNew bool) session.Position {
	return session.Position{Seq: g.sides[sideOf(onNew)].newest.Load(), New: onNew}
}

// ChangedAt implements session.WatchGroup.
func (g *watchGroup) ChangedAt(i uint32, onNew bool) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.names[i].seqs[sideOf(onNew)]
}

// ChangesSince implements session.WatchGroup.
func (g *watchGroup) ChangesSince(seq uint64, onNew bool) *propagation.List {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sides[sideOf(onNew)].changes.Since(seq)
}

// SentAt implements session.WatchGroup.
func (g *watchGroup) SentAt(i uint32, at session.Position, onNew bool) (e *cache.Entry, mark uint64, changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	to := sideOf(onNew)
	mark, changed = g.sentAt(i, at)
	changed = changed || g.on(to, i).individual || at.New != onNew && g.differs(int(i))
	return g.watched(to, i), mark, changed
}

// sentAt returns what a client that was sent everything up to a position holds of a name, and whether the name has
// changed on that side since then. The caller holds mu.
func (g *watchGroup) sentAt(i uint32, at session.Position) (mark uint64, changed bool) {
	of := sideOf(at.New)
	switch {
	case at.Seq == 0:
		return 0, true
	case g.names[i].seqs[of] <= at.Seq:
		return g.on(of, i).mark, false
	case at.Seq+1 < g.logged:
		return session.UnknownMark, true
	}
	for _, c := range g.log[at.Seq+1-g.logged:] {
		if c.name == i && c.sides.has(of) {
			return c.before, true
		}
	}
	return session.UnknownMark, true // not reached: the change is in the log
}

// changedSince calls yield once for each name whose resource has changed since a position, on that position's side.
func (g *watchGroup) changedSince(at session.Position, yield func(uint32)) {
	of := sideOf(at.New)
	if at.Seq+1 < g.logged {
		for i := range g.names {
			if g.names[i].seqs[of] > at.Seq {
				yield(uint32(i))
			}
		}
		return
	}
	for k, c := range g.log[at.Seq+1-g.logged:] {
		if g.names[c.name].seqs[of] == at.Seq+1+uint64(k) {
			yield(c.name)
		}
	}
}

// NewsSince implements session.WatchGroup.
func (g *watchGroup) NewsSince(at session.Position, onNew bool) *session.News {
	g.mu.Lock()
	defer g.mu.Unlock()
	to := sideOf(onNew)
	kept := g.sides[to].cachedNews(at, onNew)
	now := g.Newest(onNew)
	if n := kept.Get(); n != nil && n.From == at && n.To == now && g.current(n) {
		return n
	}
	n := &session.News{From: at, To: now}
	if at.Seq > 0 && at.New == onNew {
		n.Changes = g.sides[to].changes.Since(at.Seq)
	}
	add := func(i uint32) {
		of := g.on(to, i)
		switch before, _ := g.sentAt(i, at); {
		case of.individual:
			n.Odd = append(n.Odd, i)
		case of.mark != 0 && of.mark != before:
			n.Names = append(n.Names, i)
		}
	}
	g.changedSince(at, add)
	if at.New != onNew && at.Seq != 0 {
		g.differingSince(at, add)
	}
	g.gather(n)
	kept.Set(g.of.news, g, n, newsOverhead*(len(n.Names)+len(n.Odd))+len(n.Bytes))
	return n
}

// newsOverhead is about the bytes of news for each name, without the resource.
const newsOverhead = 64

// DropUnused implements recent.Owner.
func (g *watchGroup) DropUnused() (left int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.sides {
		of := &g.sides[s]
		left += of.fresh.DropUnused() + of.moved.DropUnused()
		for i := range of.news {
			left += of.news[i].DropUnused()
		}
	}
	return left
}

// current reports whether news are still up to date: a resource may have another version with the same content.
func (g *watchGroup) current(n *session.News) bool {
	to := sideOf(n.To.New)
	for k, i := range n.Names {
		if g.entry(to, i).Snapshot() != n.States[k] {
			return false
		}
	}
	return true
}

// gather puts the parts of news together.
func (g *watchGroup) gather(n *session.News) {
	delta, to := !g.kind.SotW, sideOf(n.To.New)
	n.States = make([]*cache.State, 0, len(n.Names))
	for _, i := range n.Names {
		st := g.entry(to, i).Snapshot()
		n.States = append(n.States, st)
		n.Size += st.Resource.EncodedSize(delta)
		n.Sent.Add(g.of.names[i])
		n.HoldsSecret = n.HoldsSecret || st.Resource.HoldsSecret()
	}
	n.Sent.First = slices.Clip(n.Sent.First)
	if worthBatching(len(n.States), n.Size) {
		n.Bytes = make(mem.SliceBuffer, 0, n.Size)
		for _, st := range n.States {
			n.Bytes = st.Resource.AppendBytes(n.Bytes, delta)
		}
		n.Parts = mem.BufferSlice{&n.Bytes} // a reference to Parts keeps the news alive
		return
	}
	n.Parts = make(mem.BufferSlice, 0, len(n.States))
	for _, st := range n.States {
		n.Parts = st.Resource.AppendShared(n.Parts, delta)
	}
}

// Held implements session.WatchGroup.
func (g *watchGroup) Held(at session.Position, but session.NameBits) (n int, sum uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := sideOf(at.New)
	isNewest := at == g.Newest(at.New)
	if isNewest {
		if n, sum = g.sides[of].nHeld, g.sides[of].sum; but == nil {
			return n, sum
		}
	}
	for i := range g.names {
		i := uint32(i) //nolint:gosec // a request has fewer
		mark, by := g.on(of, i).mark, -1
		if !isNewest {
			mark, _ = g.sentAt(i, at)
			by = 1
		}
		if mark != 0 && but.Has(i) == isNewest {
			n += by
			sum += uint64(by) * session.Digest(mark, g.of.names[i])
		}
	}
	return n, sum
}

// Origin implements session.WatchGroup.
func (g *watchGroup) Origin(at session.Position, but session.NameBits) *cache.OriginVersion {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at != g.Newest(at.New) {
		return nil
	}
	of := sideOf(at.New)
	known := &g.sides[of].common
	if but == nil {
		if known.origin != nil && known.seq == at.Seq && known.left == known.origin.Left() {
			return known.origin
		}
		known.origin = nil
	}
	var origin *cache.OriginVersion
	one := true
	for i := range g.names {
		i := uint32(i) //nolint:gosec // a request has fewer
		if g.on(of, i).mark == 0 || but.Has(i) {
			continue
		}
		o := g.entry(of, i).Snapshot().Origin
		switch {
		case o == nil:
			return nil
		case origin == nil:
			origin = o
		}
		if !o.Same(origin) {
			return nil
		}
		one = one && o == origin
	}
	if one && origin != nil && but == nil {
		*known = commonOrigin{origin, at.Seq, origin.Left()}
	}
	return origin
}

// memberLists are reused from update to update.
var memberLists = sync.Pool{New: func() any { return new([]*session.Member) }}

// ShowNew implements session.WatchGroup.
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

// ShowAccepted implements session.WatchGroup.
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

// differingSince calls yield once for each name whose two sides differ and whose resource has not changed since a
// position, on that position's side. The caller holds mu.
func (g *watchGroup) differingSince(at session.Position, yield func(uint32)) {
	for i := range g.differing {
		if g.differs(int(i)) && g.names[i].seqs[sideOf(at.New)] <= at.Seq {
			yield(i)
		}
	}
}

// move moves a client to the other side, and returns the changes that count it on the side that it leaves. The caller
// holds mu and moving.
func (g *watchGroup) move(m *session.Member, to side, after uint64) (owed *propagation.List) {
	owed = g.sides[sideOf(m.OnNew)].changes.Since(max(after, m.Since))
	g.leave(m)
	g.enter(m, to)
	return owed
}

// watchNew watches a name on the new side, unless it is watched there already, or not at all. The caller holds moving.
func (g *watchGroup) watchNew(i uint32) {
	g.mu.Lock()
	needless := g.differing[i] != nil || g.watches[i] == nil
	g.mu.Unlock()
	if needless {
		return
	}
	n := &newName{}
	n.watch.Group = &g.sides[rolledOut].audience
	setPlace(&n.watch, int(i))
	key := g.kind.First
	key.Name, key.Scope.New = g.of.names[i], true
	n.entry, _ = g.topics.WatchInGroup(key, &n.watch)
	if wake := g.beginNew(i, n); wake != nil {
		wake.Wake()
	}
}

// beginNew begins the watch of a name on the new side, and notes later changes.
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

// endNew resets all names on the new side to the accepted state. It returns the names that were watched there. The
// caller holds mu.
func (g *watchGroup) endNew() (ended map[uint32]*newName) {
	for i := range g.differing {
		if g.differs(int(i)) {
			g.setNew(int(i), func() { g.differing[i].filled = false })
		}
	}
	ended, g.differing = g.differing, nil
	return ended
}
