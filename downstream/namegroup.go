package downstream

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/propagation"
)

// Clients that ask for the same names are a group: it watches the names for all of them, and
// numbers their changes. Of what a client was sent it is enough to know up to which change it
// was sent everything. So one that comes, and one that is sent a change, costs the same
// however many names there are.
//
// This holds for resources that are there, and of which there is nothing else to say. A name
// for which that is not so is individual: each client watches it by itself (membership.take).

// watchGroup is the watch of the names in a list, for those who have sent it. In a rollout some of them are
// on the new side, where other names differ (groupsides.go).
type watchGroup struct {
	of      *nameList
	kind    session.GroupKind
	topics  *cache.Cache
	clients int // guarded by list.mu

	watches []cache.Watch // by name; Own is its place
	// resumed: one of the clients has come with resources from an earlier stream.
	resumed atomic.Bool
	sides   [nSides]groupSide

	// moving is held while clients change sides. It comes before mu, and before the cache's locks.
	moving sync.Mutex

	mu    sync.Mutex // guards all below, and what sides say that it does; comes before inbox.mu
	names []groupName
	// differing are the names that are watched on the new side as well, by their places.
	differing map[uint32]*newName
	// seq numbers the changes. log has them from number logged on.
	seq    uint64
	log    []groupChange
	logged uint64
}

// groupName is what is known of one of the names, on the accepted side.
type groupName struct {
	nameState
	// seqs are the numbers of its last change, by side.
	seqs [nSides]uint64
}

// nameState is what a name is on a side.
type nameState struct {
	mark       uint64 // of its resource; 0 for none
	bytes      int
	individual bool
}

// groupChange is a change of one name, with what there was before.
type groupChange struct {
	name   uint32
	sides  sides // for which it is one
	before uint64
}

// minLog is how many changes are remembered at least. A client that was sent nothing for longer is sent
// what has changed since, also what is again as it was.
const minLog = 64

// firstChange is the number of what there is when a group begins.
const firstChange = 1

func newWatchGroup(l *nameList, kind session.GroupKind, topics *cache.Cache) *watchGroup {
	g := &watchGroup{of: l, kind: kind, topics: topics, watches: make([]cache.Watch, len(l.names)), names: make([]groupName, len(l.names)), seq: firstChange, logged: firstChange + 1}
	for s := range g.sides {
		g.sides[s].newest.Store(firstChange)
	}
	g.sides[accepted].audience = cache.WatchGroup{Owner: g, IgnoreHeartbeats: true, Changed: g.changed}
	g.sides[rolledOut].audience = cache.WatchGroup{Owner: g, IgnoreHeartbeats: true, Changed: g.changedNew}
	for i, name := range l.names {
		w := &g.watches[i]
		w.Group = &g.sides[accepted].audience
		setPlace(w, i)
		key := kind.First
		key.Name = name
		// What newcomers must not be given is individual, and each requests it.
		entry, _ := topics.WatchInGroup(key, w)
		st := entry.State()
		g.mu.Lock()
		if g.names[i].seqs[accepted] == 0 { // it has not changed since
			g.set(i, g.look(i, &st), both, firstChange)
		}
		g.mu.Unlock()
	}
	return g
}

// setPlace notes in a watch which name it is of. placeOf returns that.
func setPlace(w *cache.Watch, i int) { binary.LittleEndian.PutUint32(w.Own[:], uint32(i)) } //nolint:gosec // a request has fewer

func placeOf(w *cache.Watch) int { return int(binary.LittleEndian.Uint32(w.Own[:])) }

// look says what a name's state is to the group.
func (g *watchGroup) look(i int, st *cache.State) nameState {
	r := st.Resource
	switch {
	case st.Status == cache.Requested:
		return nameState{}
	case st.Status != cache.Present, st.Err != nil, st.Partial, st.Stale && g.resumed.Load(), r.Hash() == 0, r.Redirect() != "", r.Alias(), r.DoNotCache(), r.Constraints() != "":
		return nameState{individual: true}
	}
	if form, ok := r.SharedForm(g.of.names[i], g.kind.Form, !g.kind.SotW); !ok || form != 0 {
		return nameState{individual: true} // as with a TTL, for who knows them
	}
	return nameState{mark: r.Hash(), bytes: len(r.Encoded(!g.kind.SotW))}
}

// set notes what a name is on the accepted side, which is a change for some sides. The caller holds mu.
func (g *watchGroup) set(i int, is nameState, in sides, seq uint64) {
	n := &g.names[i]
	for s := range in.each() {
		g.count(s, i, n.nameState, -1)
		g.count(s, i, is, 1)
		n.seqs[s] = seq
	}
	n.nameState = is
}

func (g *watchGroup) count(s side, i int, n nameState, by int) {
	if n.mark == 0 {
		return
	}
	of := &g.sides[s]
	of.nHeld += by
	of.bytes += by * n.bytes
	if g.kind.SotW {
		of.sum += uint64(by) * session.Digest(n.mark, g.of.names[i])
	}
}

// changed is the group's part of cache.Watcher: it notes a change once for all clients.
func (g *watchGroup) changed(w *cache.Watch) cache.Waker {
	st := w.Entry().State()
	g.mu.Lock()
	defer g.mu.Unlock()
	in := g.noteLocked(placeOf(w), &st)
	g.measure(w, in)
	return g.toWake(in)
}

// note notes a change of one name.
func (g *watchGroup) note(i int, st *cache.State) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noteLocked(i, st)
}

// noteLocked is note. It returns for which sides it is a change. The caller holds mu.
func (g *watchGroup) noteLocked(i int, st *cache.State) sides {
	in := both
	if g.differs(i) {
		in = only(accepted)
	}
	g.set(i, g.look(i, st), in, g.record(i, in, g.names[i].mark))
	return in
}

// record adds a change to the log, and returns its number. The caller holds mu.
func (g *watchGroup) record(i int, in sides, before uint64) (seq uint64) {
	if len(g.log) >= max(minLog, 4*len(g.names)) {
		half := len(g.log) / 2
		g.log, g.logged = append(g.log[:0], g.log[half:]...), g.logged+uint64(half)
	}
	g.log = append(g.log, groupChange{name: uint32(i), sides: in, before: before}) //nolint:gosec // a request has fewer
	g.seq++
	for s := range in.each() {
		g.sides[s].newest.Store(g.seq)
	}
	return g.seq
}

// toWake returns the group if somebody has to wake the clients of some sides. The caller holds mu.
func (g *watchGroup) toWake(in sides) (w cache.Waker) {
	for s := range in.each() {
		if of := &g.sides[s]; !of.waking && (s == accepted || len(of.members) > 0) {
			of.waking = true
			w = g
		}
	}
	return w
}

// memberLists are reused from update to update.
var memberLists = sync.Pool{New: func() any { return new([]*session.Member) }}

// Wake implements cache.Waker: it has the clients sent to of the sides on which something has changed.
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

// List implements the stream's typeSession.WatchGroup.
func (g *watchGroup) List() session.NameList { return g.of }

// Enter implements the stream's typeSession.WatchGroup.
func (g *watchGroup) Enter(m *session.Member) (bytes int, individual []uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.enter(m, accepted)
	for i := range g.names {
		if g.names[i].individual {
			individual = append(individual, uint32(i))
		}
	}
	return g.sides[accepted].bytes, individual
}

// Resume implements the stream's typeSession.WatchGroup.
func (g *watchGroup) Resume(topics *cache.Reader) {
	if g.resumed.Swap(true) {
		return
	}
	for i := range g.watches {
		topics.Resume(g.watches[i].Entry())
		if st := g.watches[i].Entry().State(); st.Stale {
			g.note(i, &st)
		}
	}
}

// Leave implements the stream's typeSession.WatchGroup. The group ends with the last.
func (g *watchGroup) Leave(m *session.Member) {
	if m.OnNew {
		g.ShowAccepted(m, 0) // what it is owed is noted
	}
	g.mu.Lock()
	g.leave(m)
	g.mu.Unlock()
	if !g.of.left(g) {
		return
	}
	for i := range g.watches {
		g.topics.Unwatch(&g.watches[i])
	}
}

// unknownMark is of content that a client was sent and that is not remembered.
const unknownMark = ^uint64(0)

// Newest implements the stream's typeSession.WatchGroup.
func (g *watchGroup) Newest(onNew bool) session.Position {
	return session.Position{Seq: g.sides[sideOf(onNew)].newest.Load(), New: onNew}
}

// ChangedAt implements the stream's typeSession.WatchGroup.
func (g *watchGroup) ChangedAt(i uint32, onNew bool) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.names[i].seqs[sideOf(onNew)]
}

// ChangesSince implements the stream's typeSession.WatchGroup.
func (g *watchGroup) ChangesSince(seq uint64, onNew bool) *propagation.List {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sides[sideOf(onNew)].changes.Since(seq)
}

// SentAt implements the stream's typeSession.WatchGroup.
func (g *watchGroup) SentAt(i uint32, at session.Position, onNew bool) (e *cache.Entry, mark uint64, changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	to := sideOf(onNew)
	mark, changed = g.sentAt(i, at)
	changed = changed || g.on(to, i).individual || at.New != onNew && g.differs(int(i))
	return g.watched(to, i), mark, changed
}

// sentAt returns what a client holds of a name that was sent everything up to a position, and whether the
// name has changed on that side since. The caller holds mu.
func (g *watchGroup) sentAt(i uint32, at session.Position) (mark uint64, changed bool) {
	of := sideOf(at.New)
	switch {
	case at.Seq == 0:
		return 0, true
	case g.names[i].seqs[of] <= at.Seq:
		return g.on(of, i).mark, false
	case at.Seq+1 < g.logged:
		return unknownMark, true
	}
	for _, c := range g.log[at.Seq+1-g.logged:] {
		if c.name == i && c.sides.has(of) {
			return c.before, true
		}
	}
	return unknownMark, true // not reached: the change is in the log
}

// changedSince yields the names that have changed since on the side of a position, each once.
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

// NewsSince implements the stream's typeSession.WatchGroup.
func (g *watchGroup) NewsSince(at session.Position, onNew bool) *session.News {
	g.mu.Lock()
	defer g.mu.Unlock()
	to := sideOf(onNew)
	kept := g.sides[to].kept(at, onNew)
	now := g.Newest(onNew)
	if n := kept.Value(); n != nil && n.From == at && n.To == now && g.current(n) {
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
	*kept = weak.Make(n)
	return n
}

// current says that news are still what there is: a resource may have another version
// though its content is the same.
func (g *watchGroup) current(n *session.News) bool {
	to := sideOf(n.To.New)
	for k, i := range n.Names {
		if g.entry(to, i).Snapshot() != n.States[k] {
			return false
		}
	}
	return true
}

// gather puts news together.
func (g *watchGroup) gather(n *session.News) {
	delta, to := !g.kind.SotW, sideOf(n.To.New)
	n.States = make([]*cache.State, 0, len(n.Names))
	for _, i := range n.Names {
		st := g.entry(to, i).Snapshot()
		n.States = append(n.States, st)
		n.Size += len(st.Resource.Encoded(delta))
		n.Sent.Add(g.of.names[i])
		n.HoldsSecret = n.HoldsSecret || st.Resource.HoldsSecret()
	}
	n.Sent.First = slices.Clip(n.Sent.First)
	if worthBatching(len(n.States), n.Size) {
		n.Bytes = make(mem.SliceBuffer, 0, n.Size)
		for _, st := range n.States {
			n.Bytes = append(n.Bytes, st.Resource.Encoded(delta)...)
		}
		n.Parts = mem.BufferSlice{&n.Bytes} // who has it keeps the news
		return
	}
	n.Parts = make(mem.BufferSlice, 0, len(n.States))
	for _, st := range n.States {
		n.Parts = append(n.Parts, mem.SliceBuffer(st.Resource.Encoded(delta)))
	}
}

// Held implements the stream's typeSession.WatchGroup.
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

// Origin implements the stream's typeSession.WatchGroup.
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
