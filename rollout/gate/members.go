package gate

import (
	"fmt"
	"net"
	"sync/atomic"

	"github.com/xds-relay/xds-relay/cache"
)

// Client is what a Controller has to know of a client's stream.
type Client struct {
	// Node is the id of its Node, or what stands for it, and Conn its connection, of which each has
	// one value.
	Node string
	Conn net.Addr
	// Cohort is that of the client.
	Cohort string
	// Eligible: it can be shown the new state. Resumed: it holds something from an earlier stream.
	Eligible, Resumed bool
	// Wake has the stream look which side it is to be on. It does not block.
	Wake func()
}

// nodeClients are the clients with one node id. Guarded by Controller.mu.
type nodeClients struct{ slots []*slot }

// slot is one client of a gate, or the place of one that is gone.
type slot struct {
	id string // for the machine
	// Guarded by Controller.mu.
	conn    net.Addr
	members int
	// onNew: the client is on the new side, or was when it went.
	onNew atomic.Bool
	// streams are those of the client. The goroutine of the gate alone uses them.
	streams map[*Member]struct{}
	cohort  string
}

// Member is one stream of a client, in the rollouts of one scope. Its methods do not block and may
// be called with any lock held but those that come last.
type Member struct {
	gate   *gate
	slot   *slot
	client Client
	// watches: the new topics that the stream watches are filled.
	watches atomic.Bool

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
	started
	stopped
	acceptedStopped
	teller
)

// event is something that the goroutine of a gate has to process.
type event struct {
	kind   eventKind
	member *Member
	words  string
	topic  topicKey
	onNew  bool
	tell   Teller
}

// RollsOut reports whether changes of a type are rolled out.
func (m *Member) RollsOut(typeURL string) bool { return m.gate.opts.RollsOut(typeURL) }

// OnNew reports whether the stream is to be on the new side.
func (m *Member) OnNew() bool { return m.slot.onNew.Load() }

// IsNew reports whether a resource is rolled out, and not accepted.
func (m *Member) IsNew(r *cache.Resource) bool { return m.gate.pending.news.has(r.Hash()) }

// Moved reports that the stream has moved to the new side. When everything there is filled, it is
// woken, and Filled returns true.
func (m *Member) Moved() {
	m.watches.Store(false)
	m.note(moved, "")
}

// Filled reports whether all that the stream watched when it moved has been filled.
func (m *Member) Filled() bool { return m.watches.Load() }

// Settled reports that the stream has taken what it was sent first.
func (m *Member) Settled() { m.note(settled, "") }

// Sent reports that the stream is being sent something that is new.
func (m *Member) Sent() { m.note(sent, "") }

// Untouched reports that nothing is sent to the stream on the new side.
func (m *Member) Untouched() { m.note(untouched, "") }

// Acked reports that the client has acknowledged all that it was sent on the new side.
func (m *Member) Acked() { m.note(acked, "") }

// Rejected reports that the client has rejected something that is new.
func (m *Member) Rejected(words string) { m.note(rejected, words) }

func (m *Member) note(k eventKind, words string) {
	m.gate.inbox.Put(event{kind: k, member: m, words: words})
}

// join makes a stream a member. The caller holds Controller.mu.
func (g *gate) join(c Client) *Member {
	of := g.clients[c.Node]
	if of == nil {
		of = &nodeClients{}
		g.clients[c.Node] = of
	}
	var at *slot
	for _, s := range of.slots {
		if s.members > 0 && s.conn == c.Conn {
			at = s
			break
		}
		if s.members == 0 && at == nil {
			at = s
		}
	}
	if at == nil {
		at = &slot{id: c.Node, streams: map[*Member]struct{}{}}
		if n := len(of.slots); n > 0 {
			at.id = fmt.Sprintf("%s#%d", c.Node, n)
		}
		of.slots = append(of.slots, at)
	}
	if at.members == 0 && !(at.onNew.Load() && c.Resumed) {
		at.onNew.Store(false) // it begins with the accepted state
	}
	at.members++
	at.conn = c.Conn
	m := &Member{gate: g, slot: at, client: c}
	g.inbox.Put(event{kind: joined, member: m, onNew: at.onNew.Load()})
	return m
}

// leave ends a membership. The caller holds Controller.mu.
func (g *gate) leave(m *Member, ended bool) {
	s := m.slot
	if s.members--; s.members == 0 {
		s.conn = nil
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
	for n > 0 && of.slots[n-1].members == 0 && !of.slots[n-1].onNew.Load() {
		n--
	}
	if of.slots = of.slots[:n]; n == 0 {
		delete(g.clients, node)
	}
}
