package gate

import (
	"container/heap"
	"net"
	"strconv"
	"sync/atomic"

	"github.com/xds-relay/xds-relay/cache"
)

// Client is what a Controller has to know of a client's stream.
type Client struct {
	// Node is the id of its Node, or what stands for it, and Conn its connection, of which each has
	// one value.
	Node string
	Conn net.Addr
	// Cohort is that of the client, and Who stands behind it: an identity or an address. Empty if Node
	// says that, too.
	Cohort, Who string
	// CohortNow returns the cohort in a scope by the newest settings. It may take a while.
	CohortNow func(cache.Scope) string
	// Eligible: it can be shown the new state. Resumed: it holds something from an earlier stream.
	Eligible, Resumed bool
	// Wake has the stream look which side it is to be on. It does not block.
	Wake func()
}

// nodeClients are the clients with one node id, of which there may be any number. Guarded by Controller.mu.
type nodeClients struct {
	slots []*slot
	free  freeSlots
}

// connected names a client by its node id and its connection.
type connected struct {
	node string
	conn net.Addr
}

// freeSlots is a heap of slots that have no members, the first of them first. There may be slots among them that
// are forgotten.
type freeSlots []*slot

// Len implements heap.Interface.
func (f freeSlots) Len() int { return len(f) }

// Less implements heap.Interface.
func (f freeSlots) Less(i, j int) bool { return f[i].number < f[j].number }

// Swap implements heap.Interface.
func (f freeSlots) Swap(i, j int) { f[i], f[j] = f[j], f[i] }

// Push implements heap.Interface.
func (f *freeSlots) Push(s any) { *f = append(*f, s.(*slot)) }

// Pop implements heap.Interface.
func (f *freeSlots) Pop() any {
	last := len(*f) - 1
	s := (*f)[last]
	(*f)[last] = nil
	*f = (*f)[:last]
	return s
}

// takeFree returns the first slot without members, nil if there is none.
func (n *nodeClients) takeFree() *slot {
	for len(n.free) > 0 {
		if s := heap.Pop(&n.free).(*slot); s.number < len(n.slots) && n.slots[s.number] == s {
			return s
		}
	}
	return nil
}

// slot is one client of a gate, or the place of one that is gone.
type slot struct {
	id     string // for the machine
	number int    // among those of its node id
	// members is guarded by Controller.mu.
	members int
	// showing is not 0 if the client is to be on the new side, or was when it went. Each time that it is
	// shown the new state has a number of its own: so what a stream says of an earlier time is not taken
	// for this one. Guarded by gate.mu, for those who write.
	showing atomic.Uint64
	// asked changes when more is new, and the streams have to look at it, and say what they make of it.
	asked atomic.Uint64
	// streams are those of the client. The goroutine of the gate alone uses them.
	streams []*Member
	cohort  string
}

func (s *slot) onNew() bool { return s.showing.Load() != 0 }

// Member is one stream of a client, in the rollouts of one scope. Its methods do not block and may
// be called with any lock held but those that come last.
type Member struct {
	gate   *gate
	slot   *slot
	client Client
	// moves counts how often the stream has moved, and filled how often the new topics that it watches
	// were filled after that.
	moves, filled atomic.Uint64
	// waits: the stream has found that it is not filled, and is to be woken when it is.
	waits atomic.Bool

	// Of the goroutine of the gate.
	hasSettled bool
	answer     memberAnswer
}

// memberAnswer is what a stream has made of what is new.
type memberAnswer uint8

const (
	noAnswer memberAnswer = iota
	wasSent
	hasAcked
	wasUntouched
)

// eventKind is the kind of an event.
type eventKind uint8

const (
	joined eventKind = iota
	settled
	left
	died
	sent
	untouched
	acked
	rejected
	moved
	withdrawn
	started
	stopped
	acceptedStopped
	rejecter
	recohort
	ended
)

// event is something that the goroutine of a gate has to process.
type event struct {
	kind   eventKind
	member *Member
	// showing is the one that the event belongs to.
	showing uint64
	move    uint64 // of moved: its number
	// detail is what most events do not have, nil if this one does not have it. There is an event or more for
	// each client and change.
	detail *detail
}

// detail is what some events have.
type detail struct {
	words    string
	hashes   []uint64 // of rejected: hashes of what is new in the response, nil if that is not known
	topic    topicKey
	rejecter Rejecter
}

// RollsOut reports whether changes of a type are rolled out.
func (m *Member) RollsOut(typeURL string) bool { return m.gate.opts.Load().RollsOut(typeURL) }

// Ended reports whether the scope has no rollouts any more. The stream is to leave.
func (m *Member) Ended() bool { return m.gate.ended.Load() }

// Showing returns a number if the stream is to be on the new side, and otherwise 0. If it changes, the
// client has been on the accepted side in between, whether the stream has noticed or not.
func (m *Member) Showing() uint64 { return m.slot.showing.Load() }

// Asked returns a number. When it changes, more is new, and the stream has to report Sent or Untouched once
// more.
func (m *Member) Asked() uint64 { return m.slot.asked.Load() }

// Differing returns the names of the topics of a type that differ on the new side; all is true if these are
// too many to name. When there are others, Asked has changed.
func (m *Member) Differing(typeURL string) (names []string, all bool) {
	return m.gate.pending.index.differing(typeURL)
}

// IsNew reports whether a resource is rolled out, and not accepted.
func (m *Member) IsNew(r *cache.Resource) bool { return m.gate.pending.index.has(r.Hash()) }

// Moved reports that the stream has moved subscriptions to the new side. When everything there is filled,
// Filled returns true.
func (m *Member) Moved(showing uint64) {
	m.note(event{kind: moved, showing: showing, move: m.moves.Add(1)})
}

// Filled reports whether all that the stream watched when it moved last has been filled. If not, the stream is
// woken when it has.
func (m *Member) Filled() bool {
	if m.filled.Load() == m.moves.Load() {
		return true
	}
	m.waits.Store(true)
	return m.filled.Load() == m.moves.Load() // it may have been filled before waits was set
}

// Settled reports that the stream has taken what it was sent first.
func (m *Member) Settled() { m.note(event{kind: settled}) }

// Withdraw reports that the client can be on the accepted side only, from now on.
func (m *Member) Withdraw() { m.note(event{kind: withdrawn}) }

// Sent reports that the stream is being sent something that is new.
func (m *Member) Sent(showing uint64) { m.note(event{kind: sent, showing: showing}) }

// Untouched reports that nothing is sent to the stream on the new side.
func (m *Member) Untouched(showing uint64) { m.note(event{kind: untouched, showing: showing}) }

// Acked reports that the client has acknowledged all that it was sent on the new side.
func (m *Member) Acked(showing uint64) { m.note(event{kind: acked, showing: showing}) }

// Rejected reports that the client has rejected a response. hashes are those of what was new in it,
// nil if that is not known.
func (m *Member) Rejected(showing uint64, words string, hashes []uint64) {
	m.note(event{kind: rejected, showing: showing, detail: &detail{words: words, hashes: hashes}})
}

func (m *Member) note(e event) {
	e.member = m
	m.gate.inbox.Put(e)
}

// join makes a stream a member, and returns on which side it begins. The caller holds Controller.mu.
func (g *gate) join(c Client) (m *Member, showing uint64) {
	by := connected{c.Node, c.Conn}
	at := g.connected[by]
	if at == nil {
		at = g.place(c.Node)
		g.connected[by] = at
		if !(at.onNew() && c.Resumed && c.Eligible) {
			at.showing.Store(0) // it begins with the accepted state
		}
	}
	at.members++
	m, showing = &Member{gate: g, slot: at, client: c}, at.showing.Load()
	g.inbox.Put(event{kind: joined, member: m, showing: showing})
	return m, showing
}

// place returns a slot without members. The caller holds Controller.mu.
func (g *gate) place(node string) *slot {
	of := g.clients[node]
	if of == nil {
		of = &nodeClients{}
		g.clients[node] = of
	}
	if s := of.takeFree(); s != nil {
		return s
	}
	s := &slot{id: node, number: len(of.slots)}
	if s.number > 0 {
		s.id += "#" + strconv.Itoa(s.number)
	}
	of.slots = append(of.slots, s)
	return s
}

// leave ends a membership. The caller holds Controller.mu.
func (g *gate) leave(m *Member, ended bool) {
	s := m.slot
	if s.members--; s.members == 0 {
		delete(g.connected, connected{m.client.Node, m.client.Conn})
		heap.Push(&g.clients[m.client.Node].free, s)
	}
	kind := left
	if ended {
		kind = died
	}
	g.tidy(m.client.Node)
	g.inbox.Put(event{kind: kind, member: m})
}

// tidy forgets the places of clients that are gone, and were not on the new side. The caller holds
// Controller.mu.
func (g *gate) tidy(node string) {
	of := g.clients[node]
	if of == nil {
		return
	}
	n := len(of.slots)
	for n > 0 && of.slots[n-1].members == 0 && !of.slots[n-1].onNew() {
		n--
	}
	if of.slots = of.slots[:n]; n == 0 {
		delete(g.clients, node)
	}
}
