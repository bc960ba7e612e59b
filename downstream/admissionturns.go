package downstream

import (
	"container/heap"
	"container/list"

	"github.com/xds-relay/xds-relay/cache"
)

// Whose turn it is in a line. Those who wait take turns on three levels, so that no one gains by what it can make up:
//
//   - clients that have proven an identity, and clients that have not: a client can make up addresses, at least of IPv6
//   - identities or, for clients that have proven none, addresses
//   - the connections of an identity or address
//
// On each level it is the turn of the member that has the fewest places, so that who keeps its places keeps none of the
// others'; among these, of the one whose last turn was first. The streams of a connection are admitted in the order of
// their arrival.

// party is whom a stream in line belongs to.
type party struct {
	identity identityKey
	conn     *limitedConn // nil without a listener
}

// level is where members take turns.
type level uint8

const (
	provenOrNot level = iota
	identityOrAddress
	connection
)

// memberKey identifies a member. It has no party on the first level, and only its identity on the second.
type memberKey struct {
	level level
	party
}

// turns is a line, and those who have left it for a place. The zero value is empty. The time of an operation grows with
// the logarithm of the number of members.
type turns struct {
	all           member
	proven, other member
	// members has those on the other levels that have streams in line or places.
	members map[memberKey]*member
	room    cache.Room // of members
	// direct counts the places of streams that did not have to wait. Few streams do, so they belong to no member.
	direct int
	last   uint64 // the number of the last turn, or of who came last
}

// member is one of those that take turns on a level. Below it are its own members or, if it is a connection, streams.
type member struct {
	key     memberKey
	above   *member   // nil for the whole line
	below   rivals    // with streams in line
	streams list.List // in line, of *place
	waiting int       // streams in line
	working int       // places
	turn    uint64    // the number of its last turn, or of its coming
	at      int       // in above.below, if it has streams in line
}

// rivals are members that take turns with each other: a heap by whose turn it is.
type rivals []*member

// Len implements heap.Interface.
func (r rivals) Len() int { return len(r) }

// Less implements heap.Interface.
func (r rivals) Less(i, j int) bool {
	if r[i].working != r[j].working {
		return r[i].working < r[j].working
	}
	return r[i].turn < r[j].turn
}

// Swap implements heap.Interface.
func (r rivals) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].at, r[j].at = i, j
}

// Push implements heap.Interface.
func (r *rivals) Push(x any) {
	m, _ := x.(*member)
	m.at = len(*r)
	*r = append(*r, m)
}

// Pop implements heap.Interface.
func (r *rivals) Pop() any {
	last := len(*r) - 1
	m := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return m
}

// waiting returns the number of streams in line.
func (t *turns) waiting() int { return t.all.waiting }

// working returns the number of places.
func (t *turns) working() int { return t.all.working + t.direct }

// of returns the member for the streams of a connection. It may be new.
func (t *turns) of(p party) *member {
	first := &t.other
	if p.identity.proven != "" {
		first = &t.proven
	}
	first.above = &t.all
	whole := t.member(memberKey{identityOrAddress, party{identity: p.identity}}, first)
	return t.member(memberKey{connection, p}, whole)
}

func (t *turns) member(k memberKey, above *member) *member {
	if m := t.members[k]; m != nil {
		return m
	}
	return &member{key: k, above: above}
}

// next returns how many streams are admitted, at most, until one that joins a connection now has been, if no more join
// the line, and places are given back at once.
func (m *member) next() int {
	n := m.waiting + 1
	for ; m.above != nil; m = m.above {
		members := m.above.below.Len()
		if m.waiting == 0 {
			members++
		}
		n = min(m.above.waiting+1, n*members)
	}
	return n
}

// add adds a stream of a connection to the line. p is its place, and new.
func (t *turns) add(conn *member, p *place) *place {
	p.conn, p.admitted = conn, make(chan struct{})
	p.inLine = conn.streams.PushBack(p)
	for m := conn; m != nil; m = m.above {
		t.change(m, 1, 0)
	}
	return p
}

// remove removes a stream from the line.
func (t *turns) remove(p *place) {
	p.conn.streams.Remove(p.inLine)
	p.inLine = nil
	for m := p.conn; m != nil; m = m.above {
		t.change(m, -1, 0)
	}
}

// turn gives the stream whose turn it is its place, and returns it; nil if the line is empty.
func (t *turns) turn() *place {
	if t.all.waiting == 0 {
		return nil
	}
	m := &t.all
	for m.below.Len() > 0 {
		m = m.below[0]
	}
	p, _ := m.streams.Remove(m.streams.Front()).(*place)
	p.inLine, p.works = nil, true
	t.last++
	for ; m != nil; m = m.above {
		m.turn = t.last
		t.change(m, -1, 1)
	}
	return p
}

// take gives a stream a place without the line. p is the place, and new.
func (t *turns) take(p *place) *place {
	t.direct++
	p.works = true
	return p
}

// give takes a place back.
func (t *turns) give(p *place) {
	p.works = false
	if p.conn == nil {
		t.direct--
		return
	}
	for m := p.conn; m != nil; m = m.above {
		t.change(m, 0, -1)
	}
}

// change changes the numbers of a member, and so whether and when it has its turn.
func (t *turns) change(m *member, waiting, working int) {
	waited, kept := m.waiting > 0, m.waiting+m.working > 0
	m.waiting += waiting
	m.working += working
	if m.above == nil {
		return
	}
	switch waits := m.waiting > 0; {
	case waits && !waited:
		t.last++
		m.turn = t.last
		heap.Push(&m.above.below, m)
	case waits:
		heap.Fix(&m.above.below, m.at)
	case waited:
		heap.Remove(&m.above.below, m.at)
	}
	if m.key.level == provenOrNot {
		return
	}
	switch keeps := m.waiting+m.working > 0; {
	case keeps && !kept:
		if t.members == nil {
			t.members = map[memberKey]*member{}
		}
		t.members[m.key] = m
	case kept && !keeps:
		t.members = cache.Without(t.members, &t.room, m.key)
	}
}
