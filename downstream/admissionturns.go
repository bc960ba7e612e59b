package downstream

import (
	"container/list"

	"github.com/xds-relay/xds-relay/cache"
)

// Whose turn it is in a line. Those who wait take turns on three levels, so that no one gains by what it can make up:
//
//   - clients that have proven an identity, and clients that have not: a client can make up addresses, at least of IPv6
//   - identities or, for clients that have proven none, addresses
//   - the connections of an identity or address
//
// The streams of a connection are admitted in the order of their arrival.

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

// turns is a line. The zero value is an empty one. Each operation takes the same time however many wait.
type turns struct {
	all           member
	proven, other member
	// members has those on the other levels that have streams in line.
	members map[memberKey]*member
	room    cache.Room // of members
}

// member is one of those that take turns on a level. Below it are its own members or, if it is a connection, streams.
type member struct {
	key     memberKey
	above   *member       // nil for the whole line
	place   *list.Element // in above.below
	below   list.List     // of *member or *waiter, in the order of their turns
	waiting int           // streams
}

// waiter is a stream in line.
type waiter struct {
	conn     *member
	place    *list.Element // in conn.below
	admitted chan struct{} // is closed when the stream is admitted
}

func (t *turns) waiting() int { return t.all.waiting }

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
// the line.
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

// add adds a stream of a connection to the line.
func (t *turns) add(conn *member) *waiter {
	w := &waiter{conn: conn, admitted: make(chan struct{})}
	w.place = conn.below.PushBack(w)
	for m := conn; m != nil; m = m.above {
		m.waiting++
		if m.waiting > 1 || m.above == nil {
			continue
		}
		m.place = m.above.below.PushBack(m)
		if m.key.level == provenOrNot {
			continue
		}
		if t.members == nil {
			t.members = map[memberKey]*member{}
		}
		t.members[m.key] = m
	}
	return w
}

// remove removes a stream from the line.
func (t *turns) remove(w *waiter) {
	w.conn.below.Remove(w.place)
	for m := w.conn; m != nil; m = m.above {
		m.waiting--
		if m.waiting > 0 || m.above == nil {
			continue
		}
		m.above.below.Remove(m.place)
		if m.key.level != provenOrNot {
			t.members = cache.Without(t.members, &t.room, m.key)
		}
	}
}

// turn returns the stream whose turn it is, nil if the line is empty. On each level it is the next member's turn then.
func (t *turns) turn() *waiter {
	m := &t.all
	for {
		first := m.below.Front()
		if first == nil {
			return nil
		}
		switch v := first.Value.(type) {
		case *waiter:
			return v
		case *member:
			m.below.MoveToBack(first)
			m = v
		}
	}
}
