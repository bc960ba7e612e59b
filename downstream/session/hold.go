package session

// RemovalRule is which removals a response may carry now, while others are held for a moment (hold.go in package
// downstream) or wait for an answer (ackorder.go there). Whether a name is removed at all depends on which subscription owns it: see overlap.go.
type RemovalRule int

// The removals that a response may carry.
const (
	RemoveNone RemovalRule = iota
	// RemoveAbsent is for what the client does not hold: it learns that something that it requested does not exist.
	RemoveAbsent
	// RemoveUnnamed is for members of sets: the client keeps what it requests by name, except for orphans.
	RemoveUnnamed
	RemoveAll
)

// LetGo ends the hold on a name's resource: the client has lost what refers to it. Resend begins it again.
func (s *subscriptions) LetGo(name string) {
	if s.named.shared.holdsNothing(name) {
		return
	}
	for sub := range s.subsOf(name) {
		if sub.sent() == sentResource || sub.is(mayHold) {
			sub.makeRare().orphan = true
		}
	}
}

// keep undoes LetGo.
func (s *nameSub) keep() {
	if r := s.rare(); r != nil {
		r.orphan = false
	}
}

// goes reports that a response may carry the removal of what the client has by that name, though others are held.
func (s *nameSub) goes(may RemovalRule) bool {
	if may == RemoveUnnamed {
		r := s.rare()
		return r != nil && r.orphan
	}
	return may == RemoveAll
}
