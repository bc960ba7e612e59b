package session

import (
	"github.com/xds-relay/xds-relay/cache"
)

// TakeOdd watches by itself each name that the group cannot watch for several clients any more. The
// cache is held.
func (s *subscriptions) TakeOdd() {
	m := s.named.shared
	if !m.behind() {
		return
	}
	for _, i := range m.group.NewsSince(m.sentUpTo).Odd {
		if s.named.shared == m && m.has(i) {
			m.take(i)
		}
	}
}

// behind says that there may be something to send.
func (m *membership) behind() bool { return m != nil && m.sentUpTo != m.group.Newest() }

// sendNews adds to r what is new to the client. The cache is held.
func (m *membership) sendNews(r *Response) {
	if !m.behind() {
		return
	}
	s, n := m.subs, m.group.NewsSince(m.sentUpTo)
	switch {
	case n.Size+responseOverhead+len(r.TypeURL) > s.Limit && len(n.Names) > 1:
		m.takeAll() // each is sent by itself
		return
	case m.nTaken == 0:
		r.addNews(n)
	default:
		for k, i := range n.Names {
			if m.has(i) {
				s.addShared(r, m.group.List().All()[i], n.States[k])
			}
		}
	}
	m.sentUpTo = n.To
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

// held is how many resources the client holds of what it is subscribed to as one of
// the group, and the sum of their digests. It was sent everything.
func (m *membership) held() (n int, sum uint64) {
	if m == nil {
		return 0, 0
	}
	return m.group.Held(m.taken)
}
