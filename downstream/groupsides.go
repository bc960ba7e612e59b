package downstream

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// The sides of a group in a rollout. Clients of a group move to the new side of a rollout and back without watches of
// their own: the group watches the names that differ there, once for all of them.
//
//   - Both sides have the same names, and one log of changes. A name that does not differ has one state
//     on both, so one change in the log is for both sides.
//   - A client's position in the log has a side. After a client has moved, the group compares what the client holds
//     at its position with the other side. The difference is the same for all clients that move from there, and is in
//     one buffer.
//   - When the first client moves to the new side, the group begins to watch the names that differ. Until a topic
//     there is filled, its name has the state that it has on the accepted side. When the last client leaves the new
//     side, these watches end.

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

// noteNew records what a name is on the new side, and returns for which sides that is a change. The caller holds mu.
func (g *watchGroup) noteNew(i int, st *cache.State) sides {
	n := g.differing[uint32(i)] //nolint:gosec // a request has fewer
	if !n.filled && st.Status == cache.Requested {
		return 0
	}
	g.setNew(i, func() { n.nameState, n.filled = g.look(i, st), true })
	return only(rolledOut)
}

// setNew records that a name changes on the new side. The caller holds mu.
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

// leave removes a client from its side. The caller holds mu.
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

// countClients updates the cache's count of the clients that the watches are for. The caller holds mu.
func (g *watchGroup) countClients() {
	onNew := len(g.sides[rolledOut].members)
	g.sides[accepted].audience.Clients.Store(int64(len(g.sides[accepted].members) + onNew))
	g.sides[rolledOut].audience.Clients.Store(int64(onNew))
}
