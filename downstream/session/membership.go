package session

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// TakeOdd watches individually each name that the group can no longer watch for several clients. The cache is held.
func (s *subscriptions) TakeOdd() {
	m := s.named.shared
	if !m.behind() {
		return
	}
	for _, i := range m.news().Odd {
		if s.named.shared == m && m.has(i) {
			m.take(i)
		}
	}
}

// UnknownMark is the mark of content that a client was sent and that is not remembered.
const UnknownMark = ^uint64(0)

// behind reports that there may be something to send.
func (m *membership) behind() bool { return m != nil && m.sentUpTo != m.group.Newest(m.OnNew) }

// news returns what is new to the client. The cache is held.
func (m *membership) news() *News { return m.group.NewsSince(m.sentUpTo, m.OnNew) }

// sendNews adds to r what is new to the client. The cache is held.
func (m *membership) sendNews(r *Response) {
	if !m.behind() {
		return
	}
	s, n := m.subs, m.news()
	if slices.ContainsFunc(n.Odd, m.has) {
		return // it has become individual since TakeOdd, on the new side: the client is woken for it
	}
	switch {
	case r.size+n.Size+responseOverhead+len(r.TypeURL) > s.Limit && len(n.Names) > 1:
		m.takeAll() // each name is sent individually, and so are the owed changes
		return
	case m.nTaken == 0 && m.before == nil:
		r.addNews(n)
	default:
		for k, i := range n.Names {
			if m.has(i) && m.before.take(i) != s.mark(n.States[k].Resource) {
				s.addShared(r, m.group.List().All()[i], n.States[k])
			}
		}
	}
	if moved := m.sentUpTo.New != n.To.New; len(n.Names) > 0 || moved && m.unanswered > 0 {
		m.noteSending(n.To)
	}
	if r.brings = n.Changes; n.From.Seq == 0 || n.From.New != n.To.New {
		r.brings = m.owed()
	}
	m.sentUpTo = n.To
	if m.before != nil && m.before.left == 0 {
		m.before = nil
	}
}

// moveGroup moves a client whose names all mean resources of another scope now to the group for that scope, and reports
// whether that is possible. The client keeps what it has of each name until the other scope has an answer.
func (s *subscriptions) moveGroup() bool {
	m := s.named.shared
	list, was := m.group.List(), m.first()
	first, err := s.lookUp(refByName(list.All()[0]))
	if err != nil || s.Topics.Cache().Outdated(first.Scope) || m.nTaken > 0 || s.named.table.Len() > 0 || s.hasSets() || !list.Means(first, s) {
		return false
	}
	held := &heldNames{marks: make([]uint64, len(list.All()))}
	for i := range held.marks {
		if _, mark, _ := m.group.SentAt(uint32(i), m.sentUpTo, m.OnNew); mark != 0 {
			held.marks[i] = mark
			held.left++
		} else if held.marks[i] = m.before.of(uint32(i)); held.marks[i] != 0 {
			held.left++
		}
	}
	if held.left == 0 {
		held = nil
	}
	s.named.shared = nil
	if !s.joinGroup(list, true, held) {
		s.named.shared = m
		return false
	}
	s.Topics.Exclude(was)
	s.Host.Leave(was.Key())
	m.leaveMembers()
	s.excludeNew()
	return true
}

// addShared adds one of a group's resources to r.
func (s *subscriptions) addShared(r *Response, name string, st *cache.State) {
	if s.sotw {
		r.addSotW(name, st.Resource, s.sharedForm())
	} else {
		r.addDelta(name, st.Resource, s.sharedForm())
	}
	r.from(st.Origin)
	r.noteChanged(st.Resource)
}

// held returns how many resources the client holds of the names that it shares with the group, and the sum of their
// digests. The client was sent everything.
func (m *membership) held() (n int, sum uint64) {
	if m == nil {
		return 0, 0
	}
	return m.group.Held(m.sentUpTo, m.taken)
}
