package gate

import (
	"container/heap"
	"net"
	"strconv"
	"sync/atomic"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/chain"
)

// Client describes a client's stream to a Controller.
type Client struct {
	// Node is the client's node id, or its substitute. Conn identifies the client's connection: each connection has
	// one value.
	Node string
	Conn net.Addr
	// Cohort is the client's cohort. Who is the identity or address behind the client. Empty means that Node serves
	// as Who.
	Cohort, Who string
	// CohortNow returns the client's cohort in a scope by the newest settings. It may take a while.
	CohortNow func(cache.Scope) string
	// CohortOfAgent returns the cohort of a client behind this one, a relay, from its user agent, "" if it cannot be
	// known. nil: it never can.
	CohortOfAgent func(agent string) string
	// Eligible: the client can be shown the new state. Resumed: the client holds resources from an earlier stream.
	Eligible, Resumed bool
	// Wake makes the stream check which side it must be on. It does not block.
	Wake func()
}

// nodeClients are the clients with one node id. Guarded by Controller.mu.
type nodeClients struct {
	slots []*slot
	free  freeSlots
}

// connected identifies a client by its node id and its connection.
type connected struct {
	node string
	conn net.Addr
}

// freeSlots is a heap of slots without members, ordered by number. It may contain slots that are forgotten.
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

// takeFree removes and returns the free slot with the lowest number, nil if there is none.
func (n *nodeClients) takeFree() *slot {
	for len(n.free) > 0 {
		if s := heap.Pop(&n.free).(*slot); s.number < len(n.slots) && n.slots[s.number] == s {
			return s
		}
	}
	return nil
}

// slot stands for one client of a gate, present or gone.
type slot struct {
	id     string // the machine's client id
	number int    // among the slots of its node id
	// members is guarded by Controller.mu.
	members int
	// showing is not 0 if the client must be on the new side, or was there when it left. Each time that the client is
	// shown the new state, showing gets a new number, so that the gate can ignore a stream's reports about an earlier
	// time. gate.mu guards writes.
	showing atomic.Uint64
	// asked changes when more is new. The streams then have to report on the new state again.
	asked atomic.Uint64
	// streams are the client's streams. Only the gate's goroutine uses them.
	streams []*Member
	cohort  string
}

func (s *slot) onNew() bool { return s.showing.Load() != 0 }

// Member is one stream of a client, in the rollouts of one scope. Its methods do not block. They may be called with
// any lock held except those that come last.
type Member struct {
	gate   *gate
	slot   *slot
	client Client
	// moves counts how often the stream has moved. filled is the value of moves for which the new topics that the
	// stream watches were last filled.
	moves, filled atomic.Uint64
	// waits: the stream found its topics not filled, and the gate wakes it when they are.
	waits atomic.Bool

	// Used only by the gate's goroutine.
	hasSettled bool
	answer     memberAnswer
}

// memberAnswer is the state of a stream's answer to the new state.
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

// event is an event for a gate's goroutine.
type event struct {
	kind   eventKind
	member *Member
	// showing is the showing that the event belongs to.
	showing uint64
	number  uint64 // for moved that of the move, for untouched the Revision
	// detail has the rarely used fields, nil if the event has none of them. There are one or more events for each
	// client and change.
	detail *detail
}

// detail has the fields of an event that few kinds of events use.
type detail struct {
	words    string
	by       chain.Rejecters
	hashes   []uint64 // for rejected: hashes of the new resources in the response, nil if unknown
	topic    topicKey
	rejecter Rejecter
}

// RollsOut reports whether changes of a type are rolled out.
func (m *Member) RollsOut(typeURL string) bool { return m.gate.opts.Load().RollsOut(typeURL) }

// Ended reports whether the scope has no rollouts any longer. The stream must leave.
func (m *Member) Ended() bool { return m.gate.ended.Load() }

// Showing returns a number if the stream must be on the new side, and 0 otherwise. If the number changes, the client
// has been on the accepted side in between, whether or not the stream noticed.
func (m *Member) Showing() uint64 { return m.slot.showing.Load() }

// Revision returns a number. When it changes, more is new, and the stream has to report Sent or Untouched again.
func (m *Member) Revision() uint64 { return m.slot.asked.Load() }

// Differing returns the names of a type's topics that differ on the new side. all is true if there are too many to
// name. When the names change, Revision changes, too.
func (m *Member) Differing(typeURL string) (names []string, all bool) {
	return m.gate.pending.index.differing(typeURL)
}

// IsNew reports whether the resource with a hash is being rolled out and not accepted.
func (m *Member) IsNew(hash uint64) bool { return m.gate.pending.index.has(hash) }

// Moved reports that the stream has moved subscriptions to the new side. Filled returns true once all topics there
// are filled.
func (m *Member) Moved(showing uint64) {
	m.note(event{kind: moved, showing: showing, number: m.moves.Add(1)})
}

// Filled reports whether all topics that the stream watched at its last move are filled. If not, the gate wakes the
// stream when they are.
func (m *Member) Filled() bool {
	if m.filled.Load() == m.moves.Load() {
		return true
	}
	m.waits.Store(true)
	return m.filled.Load() == m.moves.Load() // the topics may have been filled before waits was set
}

// Settled reports that the client has ACKed what the stream sent first.
func (m *Member) Settled() { m.note(event{kind: settled}) }

// Withdraw reports that from now on the client can be on the accepted side only.
func (m *Member) Withdraw() { m.note(event{kind: withdrawn}) }

// Sent reports that the stream is sending something new.
func (m *Member) Sent(showing uint64) { m.note(event{kind: sent, showing: showing}) }

// Untouched reports that the stream sends nothing new on the new side, as of a Revision. If more has become new since,
// the report does not count.
func (m *Member) Untouched(showing, revision uint64) {
	m.note(event{kind: untouched, showing: showing, number: revision})
}

// Acked reports that the client has ACKed everything that it was sent on the new side.
func (m *Member) Acked(showing uint64) { m.note(event{kind: acked, showing: showing}) }

// Rejected reports that the client has NACKed a response. words names what it has rejected, and has its error message.
// by are those behind the client, a relay, that reject it, each with its user agent as its cohort. hashes are those of the new resources in the response, nil if
// unknown.
func (m *Member) Rejected(showing uint64, words string, by chain.Rejecters, hashes []uint64) {
	for i := range by.Whos {
		agent := by.Whos[i].Cohort
		if by.Whos[i].Cohort = ""; agent != "" && m.client.CohortOfAgent != nil {
			by.Whos[i].Cohort = m.client.CohortOfAgent(agent)
		}
	}
	m.note(event{kind: rejected, showing: showing, detail: &detail{words: words, by: by, hashes: hashes}})
}

func (m *Member) note(e event) {
	e.member = m
	m.gate.inbox.Put(e)
}

// join makes a stream a member, and returns the showing with which it begins. The caller holds Controller.mu.
func (g *gate) join(c Client) (m *Member, showing uint64) {
	by := connected{c.Node, c.Conn}
	at := g.connected[by]
	if at == nil {
		at = g.place(c.Node)
		g.connected[by] = at
		if !(at.onNew() && c.Resumed && c.Eligible) {
			at.showing.Store(0) // the client begins with the accepted state
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

// tidy forgets the slots of clients that are gone and were not on the new side. The caller holds Controller.mu.
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
