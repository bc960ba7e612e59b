package downstream

import (
	"encoding/binary"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/recent"
)

// Clients that request the same names are a group: the group watches the names for all of them, and numbers their
// changes. To know what a client was sent, the group needs only the number of the change up to which the client was
// sent everything. So a new client, or sending a change to a client, costs the same however many names there are.
//
// This holds for plain resources that exist, with no error or TTL. Any other name is individual: each client watches it
// by itself (membership.take).

// watchGroup watches the names in a list, for the clients that have sent it. In a rollout some of the clients are on
// the new side, where some names differ (groupsides.go).
type watchGroup struct {
	of      *nameList
	kind    session.GroupKind
	topics  *cache.Cache
	clients int // guarded by list.mu

	first *cache.Entry // of the first name
	// resumed: one of the clients has connected with resources from an earlier stream.
	resumed atomic.Bool
	sides   [nSides]groupSide

	// moving is held while clients change sides. It comes before mu, and before the cache's locks.
	moving sync.Mutex

	mu    sync.Mutex // guards all below, and what sides say that it does; comes before inbox.mu
	names []groupName
	// watches has the watch of each name, nil while all clients have unsubscribed from it (groupunwatch.go). Own has the
	// place.
	watches []*cache.Watch
	// gaveUp is how many clients have unsubscribed from each name. It is nil until one has.
	gaveUp []int32
	// differing are the names that are also watched on the new side, by their places.
	differing map[uint32]*newName
	// seq numbers the changes. log has the changes from number logged on.
	seq    uint64
	log    []groupChange
	logged uint64
	// audiences are the audiences of the clients on listeners that prefetch.
	audiences map[PrefetchAudience]*groupAudience
}

// nameList is a list of names that more than one client has sent, and what it means to which clients.
type nameList struct {
	fields []byte // as encoded in requests
	names  []string

	index func() map[string]uint32
	news  *recent.Keeper // of the groups

	mu sync.Mutex
	// groups are the groups of the clients that have sent the list: one for all, unless it means different things to
	// them.
	groups []*watchGroup
	// meant has, for old-style names, the clients to whom the list means resources in the scope of the first name.
	meant map[meantFor]bool
}

// meantFor identifies clients to whom all old-style names mean the same by one configuration, and who may have the same
// of them. The class is 0 for clients that may have all.
type meantFor struct {
	configuration uint32
	class         uint64
	first         cache.Key
}

// groupName is the state of one of the names on the accepted side.
type groupName struct {
	nameState
	// seqs are the numbers of the name's last change, by side.
	seqs [nSides]uint64
}

// nameState is the state of a name on a side.
type nameState struct {
	mark       uint64 // of its resource; 0 for none
	bytes      int
	individual bool
}

// groupChange is a change of one name, with the state before.
type groupChange struct {
	name   uint32
	sides  sides // the sides on which it is a change
	before uint64
}

// groupAudience counts the clients of a group that are in an audience.
type groupAudience struct {
	clients int
	wanted  moment // when the audience was last notified of a client
}

// side is one of the two sides of a group.
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

// sides is a set of sides, as bits.
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

// groupSide is the state of one side of a group. watchGroup.mu guards it, except audience and newest.
type groupSide struct {
	audience cache.WatchGroup
	// newest is the number of the last change. It does not change while the cache is held, except on the new side when
	// the group begins to watch more names there.
	newest  atomic.Uint64
	members []*session.Member
	// changes are the changes that are measured.
	changes propagation.Numbered
	// waking: a goroutine is about to wake the members, and has not begun.
	waking bool
	// nHeld is how many names have a resource and are not individual, bytes is the size of these resources, and sum the
	// sum of their digests. SotW.
	nHeld int
	bytes int
	sum   uint64
	// fresh is for new clients, news for clients that were sent all but the newest changes, by the position to which they
	// were, and moved for clients that come from the other side. There are several positions when some clients wait for
	// an answer: see ackOrder.
	fresh, moved recent.Value[session.News]
	news         [4]recent.Value[session.News]
	common       commonOrigin
}

// commonOrigin is the version of the origin that all held resources had as of a change, as long as all still have it.
type commonOrigin struct {
	origin *cache.OriginVersion
	seq    uint64
	left   uint32
}

// cachedNews returns where the news for clients at a position are cached.
func (s *groupSide) cachedNews(at session.Position, onNew bool) *recent.Value[session.News] {
	switch {
	case at.Seq == 0:
		return &s.fresh
	case at.New != onNew:
		return &s.moved
	}
	return &s.news[at.Seq%uint64(len(s.news))]
}

func (s *groupSide) clearNews() {
	s.fresh.Clear()
	for i := range s.news {
		s.news[i].Clear()
	}
	s.moved.Clear()
}

// newName is a name that is also watched on the new side.
type newName struct {
	watch cache.Watch
	entry *cache.Entry
	nameState
	// filled: the new side has an answer, so the name counts there.
	filled bool
}

// minLog is the least number of changes that are remembered. A client that was sent nothing for longer is sent all
// names that have changed since, including those that have changed back.
const minLog = 64

// firstChange is the number of the state with which a group begins.
const firstChange = 1

// setPlace stores in a watch the place of its name. placeOf returns the place.
func setPlace(w *cache.Watch, i int) { binary.LittleEndian.PutUint32(w.Own[:], uint32(i)) } //nolint:gosec // a request has fewer

func placeOf(w *cache.Watch) int { return int(binary.LittleEndian.Uint32(w.Own[:])) }

// look returns a name's state as the group sees it.
func (g *watchGroup) look(i int, st *cache.State) nameState {
	r := st.Resource
	switch {
	case st.Status == cache.Requested:
		return nameState{}
	case st.Status != cache.Present, st.Err != nil, st.Partial, st.Stale && g.resumed.Load(), r.Hash() == 0, r.Redirect() != "", r.Alias(), r.DoNotCache(), r.Constraints() != "":
		return nameState{individual: true}
	}
	if form, ok := r.SharedForm(g.of.names[i], g.kind.Form, !g.kind.SotW); !ok || form != 0 {
		return nameState{individual: true} // as with a TTL, for clients that support it
	}
	return nameState{mark: r.Hash(), bytes: r.EncodedSize(!g.kind.SotW)}
}

// set sets the state of a name on the accepted side, which is a change for some sides. The caller holds mu.
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

// changed is the group's part of cache.Watcher: it records a change once for all clients.
func (g *watchGroup) changed(w *cache.Watch) cache.Waker {
	st := w.Entry().State()
	g.mu.Lock()
	defer g.mu.Unlock()
	in := g.noteLocked(w, &st)
	g.measure(w, in)
	return g.toWake(in)
}

// note records a change of one name.
func (g *watchGroup) note(w *cache.Watch, st *cache.State) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noteLocked(w, st)
}

// noteLocked is note. It returns the sides on which the state has changed. The caller holds mu.
func (g *watchGroup) noteLocked(w *cache.Watch, st *cache.State) sides {
	i := placeOf(w)
	if g.watches[i] != w {
		return 0 // it is not watched any more
	}
	in := g.sidesOf(i)
	g.set(i, g.look(i, st), in, g.record(i, in, g.names[i].mark))
	return in
}

// sidesOf returns the sides on which a name has its accepted state. The caller holds mu.
func (g *watchGroup) sidesOf(i int) sides {
	if g.differs(i) {
		return only(accepted)
	}
	return both
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
		of := &g.sides[s]
		of.newest.Store(g.seq)
		of.clearNews()
	}
	return g.seq
}

// toWake returns the group if the clients of some sides have to be woken. The caller holds mu.
func (g *watchGroup) toWake(in sides) (w cache.Waker) {
	for s := range in.each() {
		if of := &g.sides[s]; !of.waking && (s == accepted || len(of.members) > 0) {
			of.waking = true
			w = g
		}
	}
	return w
}

// differs reports whether a name has a state of its own on the new side. The caller holds mu.
func (g *watchGroup) differs(i int) bool {
	n := g.differing[uint32(i)] //nolint:gosec // a request has fewer
	return n != nil && n.filled
}

// on returns the state of a name on a side. The caller holds mu.
func (g *watchGroup) on(s side, i uint32) *nameState {
	if s == rolledOut && g.differs(int(i)) {
		return &g.differing[i].nameState
	}
	return &g.names[i].nameState
}

// entry returns the entry that gives a name's state on a side. The caller holds mu.
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

// measure has the change measured for the clients of some sides. The caller holds mu.
func (g *watchGroup) measure(w *cache.Watch, in sides) {
	for s := range in.each() {
		g.sides[s].changes.Add(w.Change(), g.seq, len(g.sides[s].members))
	}
}
