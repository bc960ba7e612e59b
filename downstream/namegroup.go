package downstream

import (
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

// watchGroup is the watch of the names in a list, for those who have sent it.
type watchGroup struct {
	of      *nameList
	kind    session.GroupKind
	topics  *cache.Cache
	clients int // guarded by list.mu

	audience cache.WatchGroup
	watches  []cache.Watch // by name; Own is its place
	// seq numbers the changes. It does not change while the cache is held.
	seq atomic.Uint64
	// resumed: one of the clients has come with resources from an earlier stream.
	resumed atomic.Bool

	mu      sync.Mutex // guards all below; comes before inbox.mu
	names   []groupName
	members []*session.Member
	// changes are those that are measured.
	changes propagation.Numbered
	// log has the changes from number logged on.
	log    []groupChange
	logged uint64
	// nHeld is how many names have a resource and are not individual, bytes are theirs, and sum is
	// the sum of their digests. SotW.
	nHeld int
	bytes int
	sum   uint64
	// waking: somebody is to wake all clients, and has not begun.
	waking bool
	// fresh is for clients that come, news for those that were sent all but the newest.
	fresh, news weak.Pointer[session.News]
	// common is the version of the origin that all had which are held, as of a change, as
	// long as none has left it.
	common   *cache.OriginVersion
	commonAt uint64
	left     uint32
}

// groupName is what is known of one of the names.
type groupName struct {
	seq        uint64 // of its last change
	mark       uint64 // of its resource; 0 for none
	bytes      int
	individual bool
}

// groupChange is a change of one name, with what there was before.
type groupChange struct {
	name   uint32
	before uint64
}

// minLog is how many changes are remembered at least. A client that was sent nothing for longer is sent
// what has changed since, also what is again as it was.
const minLog = 64

// firstChange is the number of what there is when a group begins.
const firstChange = 1

func newWatchGroup(l *nameList, kind session.GroupKind, topics *cache.Cache) *watchGroup {
	g := &watchGroup{of: l, kind: kind, topics: topics, watches: make([]cache.Watch, len(l.names)), names: make([]groupName, len(l.names)), logged: firstChange + 1}
	g.audience = cache.WatchGroup{Owner: g, IgnoreHeartbeats: true, Changed: g.changed}
	g.seq.Store(firstChange)
	for i, name := range l.names {
		w := &g.watches[i]
		w.Group = &g.audience
		w.Own = [4]byte{byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24)}
		key := kind.First
		key.Name = name
		// What newcomers must not be given is individual, and each requests it.
		entry, _ := topics.WatchInGroup(key, w)
		st := entry.State()
		g.mu.Lock()
		if g.names[i].seq == 0 { // it has not changed since
			g.set(i, g.look(i, &st), firstChange)
		}
		g.mu.Unlock()
	}
	return g
}

// look says what a name's state is to the group.
func (g *watchGroup) look(i int, st *cache.State) groupName {
	r := st.Resource
	switch {
	case st.Status == cache.Requested:
		return groupName{}
	case st.Status != cache.Present, st.Err != nil, st.Partial, st.Stale && g.resumed.Load(), r.Hash() == 0, r.Redirect() != "", r.Alias(), r.DoNotCache(), r.Constraints() != "":
		return groupName{individual: true}
	}
	if form, ok := r.SharedForm(g.of.names[i], g.kind.Form, !g.kind.SotW); !ok || form != 0 {
		return groupName{individual: true} // as with a TTL, for who knows them
	}
	return groupName{mark: r.Hash(), bytes: len(r.Encoded(!g.kind.SotW))}
}

// set notes what a name is. The caller holds mu.
func (g *watchGroup) set(i int, is groupName, seq uint64) {
	was := &g.names[i]
	g.count(i, was, -1)
	is.seq = seq
	*was = is
	g.count(i, was, 1)
}

func (g *watchGroup) count(i int, n *groupName, by int) {
	if n.mark == 0 {
		return
	}
	g.nHeld += by
	g.bytes += by * n.bytes
	if g.kind.SotW {
		g.sum += uint64(by) * session.Digest(n.mark, g.of.names[i])
	}
}

// changed is the group's part of cache.Watcher: it notes a change once for all clients.
func (g *watchGroup) changed(w *cache.Watch) cache.Waker {
	i := int(w.Own[0]) | int(w.Own[1])<<8 | int(w.Own[2])<<16 | int(w.Own[3])<<24
	st := w.Entry().State()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noteLocked(i, &st)
	g.changes.Add(w.Change(), g.seq.Load(), len(g.members))
	if g.waking {
		return nil
	}
	g.waking = true
	return g
}

// note notes a change of one name.
func (g *watchGroup) note(i int, st *cache.State) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noteLocked(i, st)
}

// noteLocked is note. The caller holds mu.
func (g *watchGroup) noteLocked(i int, st *cache.State) {
	is := g.look(i, st)
	seq := g.seq.Load() + 1
	if len(g.log) >= max(minLog, 4*len(g.names)) {
		half := len(g.log) / 2
		g.log, g.logged = append(g.log[:0], g.log[half:]...), g.logged+uint64(half)
	}
	g.log = append(g.log, groupChange{name: uint32(i), before: g.names[i].mark})
	g.set(i, is, seq)
	g.seq.Store(seq)
}

// memberLists are reused from update to update.
var memberLists = sync.Pool{New: func() any { return new([]*session.Member) }}

// Wake implements cache.Waker: it has all clients sent to.
func (g *watchGroup) Wake() {
	list := memberLists.Get().(*[]*session.Member)
	g.mu.Lock()
	g.waking = false
	all := append((*list)[:0], g.members...)
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
	m.Index, m.Since = len(g.members), g.seq.Load()
	g.members = append(g.members, m)
	g.audience.Clients.Store(int64(len(g.members)))
	for i := range g.names {
		if g.names[i].individual {
			individual = append(individual, uint32(i))
		}
	}
	return g.bytes, individual
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
	g.mu.Lock()
	end := len(g.members) - 1
	g.members[m.Index] = g.members[end]
	g.members[m.Index].Index = m.Index
	g.members[end] = nil
	g.members = g.members[:end]
	if cap(g.members) > minLog && 4*end < cap(g.members) {
		g.members = append(make([]*session.Member, 0, 2*end), g.members...)
	}
	g.audience.Clients.Store(int64(end))
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
func (g *watchGroup) Newest() uint64 { return g.seq.Load() }

// SentAt implements the stream's typeSession.WatchGroup.
func (g *watchGroup) SentAt(i uint32, seq uint64) (e *cache.Entry, mark uint64, changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	mark, changed = g.sentAtLocked(i, seq)
	return g.watches[i].Entry(), mark, changed
}

// ChangedAt implements the stream's typeSession.WatchGroup.
func (g *watchGroup) ChangedAt(i uint32) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.names[i].seq
}

// ChangesSince implements the stream's typeSession.WatchGroup.
func (g *watchGroup) ChangesSince(seq uint64) *propagation.List {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changes.Since(seq)
}

func (g *watchGroup) sentAtLocked(i uint32, seq uint64) (mark uint64, changed bool) {
	n := &g.names[i]
	switch {
	case seq == 0:
		return 0, true
	case n.seq <= seq:
		return n.mark, n.individual
	case seq+1 < g.logged:
		return unknownMark, true
	}
	for _, c := range g.log[seq+1-g.logged:] {
		if c.name == i {
			return c.before, true
		}
	}
	return unknownMark, true // not reached: the change is in the log
}

// changedSince yields the names that have changed since, each once.
func (g *watchGroup) changedSince(seq uint64, yield func(uint32)) {
	if seq+1 < g.logged {
		for i := range g.names {
			if g.names[i].seq > seq {
				yield(uint32(i))
			}
		}
		return
	}
	for k, c := range g.log[seq+1-g.logged:] {
		if g.names[c.name].seq == seq+1+uint64(k) {
			yield(c.name)
		}
	}
}

// NewsSince implements the stream's typeSession.WatchGroup.
func (g *watchGroup) NewsSince(seq uint64) *session.News {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := &g.news
	if seq == 0 {
		kept = &g.fresh
	}
	if n := kept.Value(); n != nil && n.From == seq && n.To == g.seq.Load() && g.current(n) {
		return n
	}
	n := &session.News{From: seq, To: g.seq.Load()}
	if seq > 0 {
		n.Changes = g.changes.Since(seq)
	}
	g.changedSince(seq, func(i uint32) {
		of := &g.names[i]
		switch before, _ := g.sentAtLocked(i, seq); {
		case of.individual:
			n.Odd = append(n.Odd, i)
		case of.mark != 0 && of.mark != before:
			n.Names = append(n.Names, i)
		}
	})
	g.gather(n)
	*kept = weak.Make(n)
	return n
}

// current says that news are still what there is: a resource may have another version
// though its content is the same.
func (g *watchGroup) current(n *session.News) bool {
	for k, i := range n.Names {
		if g.watches[i].Entry().Snapshot() != n.States[k] {
			return false
		}
	}
	return true
}

// gather puts news together.
func (g *watchGroup) gather(n *session.News) {
	delta := !g.kind.SotW
	n.States = make([]*cache.State, 0, len(n.Names))
	for _, i := range n.Names {
		st := g.watches[i].Entry().Snapshot()
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
func (g *watchGroup) Held(but session.NameBits) (n int, sum uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, sum = g.nHeld, g.sum
	if but == nil {
		return n, sum
	}
	for i := range g.names {
		if mark := g.names[i].mark; mark != 0 && but.Has(uint32(i)) {
			n--
			sum -= session.Digest(mark, g.of.names[i])
		}
	}
	return n, sum
}

// Origin implements the stream's typeSession.WatchGroup.
func (g *watchGroup) Origin(but session.NameBits) *cache.OriginVersion {
	g.mu.Lock()
	defer g.mu.Unlock()
	seq := g.seq.Load()
	if but == nil {
		if g.common != nil && g.commonAt == seq && g.left == g.common.Left() {
			return g.common
		}
		g.common = nil
	}
	var origin *cache.OriginVersion
	one := true
	for i := range g.names {
		if g.names[i].mark == 0 || but.Has(uint32(i)) {
			continue
		}
		o := g.watches[i].Entry().Snapshot().Origin
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
		g.common, g.commonAt, g.left = origin, seq, origin.Left()
	}
	return origin
}
