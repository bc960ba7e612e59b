package downstream

import (
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/cache"
)

// Clients that ask for the same names are a group: it watches the names for all of them, and
// numbers their changes. Of what a client was told it is enough to know up to which change it
// was told everything. So one that comes, and one that is told of a change, costs the same
// however many names there are.
//
// This holds for resources that are there, and of which there is nothing else to say. A name
// for which that is not so is odd: each client watches it by itself (membership.take).

// groupKind is what the clients of a group have in common, besides their list of names.
type groupKind struct {
	first cache.Key // what the first name means; the others are in the same scope
	form  cache.Form
	sotw  bool
}

// nameGroup is the watch of the names in a list, for those who have sent it.
type nameGroup struct {
	list    *askedList
	kind    groupKind
	topics  *cache.Cache
	clients int // guarded by list.mu

	audience cache.Audience
	watches  []cache.Watch // by name; Own is its place
	// seq numbers the changes. It does not change while the cache is held.
	seq atomic.Uint64
	// resumed: one of the clients has come with resources from an earlier stream.
	resumed atomic.Bool

	mu      sync.Mutex // guards all below; comes before inbox.mu
	names   []groupName
	members []*membership
	// log has the changes from number logged on.
	log    []groupChange
	logged uint64
	// held is how many names have a resource and are not odd, bytes are theirs, and sum is
	// the sum of their digests. SotW.
	held  int
	bytes int
	sum   uint64
	// waking: somebody is to wake all clients, and has not begun.
	waking bool
	// fresh is for who comes, news for who was told all but the newest.
	fresh, news weak.Pointer[groupNews]
	// origin is the version of the origin that all had which are held, as of a change, as
	// long as none has left it.
	origin   *cache.OriginVersion
	originAt uint64
	left     uint32
}

// groupName is what is known of one of the names.
type groupName struct {
	seq   uint64 // of its last change
	mark  uint64 // of its resource; 0 for none
	bytes int
	odd   bool
}

// groupChange is a change of one name, with what there was before.
type groupChange struct {
	name   uint32
	before uint64
}

// minLog is how many changes are remembered at least. Who was told nothing for longer is sent
// what has changed since, also what is again as it was.
const minLog = 64

// firstChange is the number of what there is when a group begins.
const firstChange = 1

func newNameGroup(l *askedList, kind groupKind, topics *cache.Cache) *nameGroup {
	g := &nameGroup{list: l, kind: kind, topics: topics, watches: make([]cache.Watch, len(l.names)), names: make([]groupName, len(l.names)), logged: firstChange + 1}
	g.audience = cache.Audience{Owner: g, NoBeats: true, Changed: g.changed}
	g.seq.Store(firstChange)
	for i, name := range l.names {
		w := &g.watches[i]
		w.Audience = &g.audience
		w.Own = [4]byte{byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24)}
		key := kind.first
		key.Name = name
		// What newcomers must not be given is odd, and each asks for it.
		entry, _ := topics.Join(key, w)
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
func (g *nameGroup) look(i int, st *cache.State) groupName {
	r := st.Resource
	switch {
	case st.Status == cache.Requested:
		return groupName{}
	case st.Status != cache.Present, st.Err != nil, st.Partial, r.Hash() == 0, r.Redirect() != "", r.Alias(), r.DoNotCache(), r.Constraints() != "":
		return groupName{odd: true}
	}
	if form, ok := r.Common(g.list.names[i], g.kind.form, !g.kind.sotw); !ok || form != 0 {
		return groupName{odd: true} // as with a TTL, for who knows them
	}
	return groupName{mark: r.Hash(), bytes: len(r.Plain(!g.kind.sotw))}
}

// set notes what a name is. The caller holds mu.
func (g *nameGroup) set(i int, is groupName, seq uint64) {
	was := &g.names[i]
	g.count(i, was, -1)
	is.seq = seq
	*was = is
	g.count(i, was, 1)
}

func (g *nameGroup) count(i int, n *groupName, by int) {
	if n.mark == 0 {
		return
	}
	g.held += by
	g.bytes += by * n.bytes
	if g.kind.sotw {
		g.sum += uint64(by) * digestOf(n.mark, g.list.names[i])
	}
}

// changed is the group's part of cache.Watcher: it notes a change once for all clients.
func (g *nameGroup) changed(w *cache.Watch) cache.Waker {
	i := int(w.Own[0]) | int(w.Own[1])<<8 | int(w.Own[2])<<16 | int(w.Own[3])<<24
	st := w.Entry().State()
	is := g.look(i, &st)
	g.mu.Lock()
	defer g.mu.Unlock()
	seq := g.seq.Load() + 1
	if len(g.log) >= max(minLog, 4*len(g.names)) {
		half := len(g.log) / 2
		g.log, g.logged = append(g.log[:0], g.log[half:]...), g.logged+uint64(half)
	}
	g.log = append(g.log, groupChange{name: uint32(i), before: g.names[i].mark})
	g.set(i, is, seq)
	g.seq.Store(seq)
	if g.waking {
		return nil
	}
	g.waking = true
	return g
}

// memberLists are reused from update to update.
var memberLists = sync.Pool{New: func() any { return new([]*membership) }}

// Wake implements cache.Waker: it has all clients sent to.
func (g *nameGroup) Wake() {
	list := memberLists.Get().(*[]*membership)
	g.mu.Lock()
	g.waking = false
	all := append((*list)[:0], g.members...)
	g.mu.Unlock()
	for i, m := range all {
		if in := m.subs.inbox; in.rouse() {
			in.waker.Wake()
		}
		all[i] = nil
	}
	*list = all
	memberLists.Put(list)
}

// add adds a client.
func (g *nameGroup) add(m *membership) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m.index = len(g.members)
	g.members = append(g.members, m)
	g.audience.Clients.Store(int64(len(g.members)))
}

// remove removes a client. The group ends with the last.
func (g *nameGroup) remove(m *membership) {
	g.mu.Lock()
	end := len(g.members) - 1
	g.members[m.index] = g.members[end]
	g.members[m.index].index = m.index
	g.members[end] = nil
	g.members = g.members[:end]
	if cap(g.members) > minCompact && 4*end < cap(g.members) {
		g.members = append(make([]*membership, 0, 2*end), g.members...)
	}
	g.audience.Clients.Store(int64(end))
	g.mu.Unlock()
	if !g.list.left(g) {
		return
	}
	for i := range g.watches {
		g.topics.Unwatch(&g.watches[i])
	}
}

// odd returns the names that each client watches by itself.
func (g *nameGroup) odd() (odd []uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.names {
		if g.names[i].odd {
			odd = append(odd, uint32(i))
		}
	}
	return odd
}

// unknownMark is of content that a client was told and that is not remembered.
const unknownMark = ^uint64(0)

// toldAt returns what a client holds of a name that was told everything up to a change: the
// mark of its resource, 0 for none. changed says that there was something since.
func (g *nameGroup) toldAt(i uint32, seq uint64) (mark uint64, changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.toldAtLocked(i, seq)
}

func (g *nameGroup) toldAtLocked(i uint32, seq uint64) (mark uint64, changed bool) {
	n := &g.names[i]
	switch {
	case seq == 0:
		return 0, true
	case n.seq <= seq:
		return n.mark, n.odd
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
func (g *nameGroup) changedSince(seq uint64, yield func(uint32)) {
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

// groupNews is what there is to tell a client that was told everything up to a change.
type groupNews struct {
	bytes    mem.SliceBuffer // of all, if they are joined
	from, to uint64
	odd      []uint32
	names    []uint32
	states   []*cache.State // of names
	clusters []*cache.Resource
	parts    mem.BufferSlice
	size     int
	told     nameList
}

// newsSince returns the news. The cache is held. It may be kept for as long as that.
func (g *nameGroup) newsSince(seq uint64) *groupNews {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := &g.news
	if seq == 0 {
		kept = &g.fresh
	}
	if n := kept.Value(); n != nil && n.from == seq && n.to == g.seq.Load() && g.current(n) {
		return n
	}
	n := &groupNews{from: seq, to: g.seq.Load()}
	g.changedSince(seq, func(i uint32) {
		of := &g.names[i]
		switch before, _ := g.toldAtLocked(i, seq); {
		case of.odd:
			n.odd = append(n.odd, i)
		case of.mark != 0 && of.mark != before:
			n.names = append(n.names, i)
		}
	})
	g.gather(n)
	*kept = weak.Make(n)
	return n
}

// current says that what is told is still what there is: a resource may have another version
// though its content is the same.
func (g *nameGroup) current(n *groupNews) bool {
	for k, i := range n.names {
		if g.watches[i].Entry().Snapshot() != n.states[k] {
			return false
		}
	}
	return true
}

// gather puts together what is told.
func (g *nameGroup) gather(n *groupNews) {
	delta := !g.kind.sotw
	n.states = make([]*cache.State, 0, len(n.names))
	for _, i := range n.names {
		st := g.watches[i].Entry().Snapshot()
		n.states = append(n.states, st)
		n.size += len(st.Resource.Plain(delta))
		n.told.add(g.list.names[i])
	}
	n.told.first = slices.Clip(n.told.first)
	r := response{typeURL: g.kind.first.TypeURL}
	for _, st := range n.states {
		r.noteChanged(st.Resource)
	}
	n.clusters = slices.Clip(r.changed)
	if worthJoining(len(n.states), n.size) {
		n.bytes = make(mem.SliceBuffer, 0, n.size)
		for _, st := range n.states {
			n.bytes = append(n.bytes, st.Resource.Plain(delta)...)
		}
		n.parts = mem.BufferSlice{&n.bytes} // who has it keeps the news
		return
	}
	n.parts = make(mem.BufferSlice, 0, len(n.states))
	for _, st := range n.states {
		n.parts = append(n.parts, mem.SliceBuffer(st.Resource.Plain(delta)))
	}
}

// common returns the version of the origin that all names have that are held, nil if they
// have not one. The cache is held.
func (g *nameGroup) common() *cache.OriginVersion {
	g.mu.Lock()
	defer g.mu.Unlock()
	seq := g.seq.Load()
	if g.origin != nil && g.originAt == seq && g.left == g.origin.Left() {
		return g.origin
	}
	g.origin = nil
	var origin *cache.OriginVersion
	one := true
	for i := range g.names {
		if g.names[i].mark == 0 {
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
	if one && origin != nil {
		g.origin, g.originAt, g.left = origin, seq, origin.Left()
	}
	return origin
}

// digestOf is digest of a resource with a mark, under a key.
func digestOf(mark uint64, key string) uint64 {
	h := xxhash.NewWithSeed(mark)
	_, _ = h.WriteString(key)
	return h.Sum64()
}
