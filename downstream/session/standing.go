package session

import "slices"

// When a NACK ends. A client rejects a whole response, and never says that the rejection is over: it ends when the client
// accepts a later response that can replace what it has rejected, or has nothing of it any more.

// accepted records that the client has accepted responses.
func (s *subscriptions) accepted(all ...sentResponse) {
	if !s.nacks.any() {
		return
	}
	for n := range s.nacks.newestFirst() {
		for i := 0; i < len(all) && !n.over; i++ {
			n.over = s.ends(n, &all[i])
		}
	}
}

// ends reports whether a NACK has ended because the client has accepted a response.
func (s *subscriptions) ends(n *Rejection, r *sentResponse) bool {
	if r.rejected {
		return false
	}
	if slices.ContainsFunc(r.names.First, func(name string) bool { return slices.Contains(n.response.names.First, name) }) {
		return true
	}
	// Any other response tells something only if it was sent after the NACK. The numbers of later ones may overflow.
	n.answeredSince = n.answeredSince || r.number.after(n.sentBefore)
	if !n.answeredSince {
		return false
	}
	// Not all names of a large response are remembered.
	return n.response.had(hadMore) || r.had(hadMore) || !slices.ContainsFunc(n.response.names.First, s.holds)
}

// holds reports whether the client was sent a resource of that name, and still subscribes to it.
func (s *subscriptions) holds(name string) bool {
	if m := s.named.shared; m != nil {
		if _, ok := m.find(name); ok && !m.holdsNothing(name) {
			return true
		}
	}
	if sub, ok := s.named.table.Get(name, (*nameSub).key); ok && sub.sent() == sentResource {
		return true
	}
	for set := range s.sets() {
		if set.set != nil && set.set.Member(memberKey(name)) != nil {
			return true
		}
	}
	return false
}

// standing returns the newest NACK that has not ended, nil if there is none.
func (s *subscriptions) standing() *Rejection {
	if s.Subscribed() == 0 && s.wild == nil {
		return nil
	}
	for n := range s.nacks.newestFirst() {
		if !n.over {
			return n
		}
	}
	return nil
}

// refused returns how many of the names and wildcards that the client subscribes to the relay refuses.
func (s *subscriptions) refused() (n int) {
	if t := s.trouble; t != nil {
		n = t.refused + t.deniedOwn
	}
	if s.wild != nil && s.wild.err != nil {
		n++
	}
	return n
}
