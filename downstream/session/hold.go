package session

// RemovalRule is which removals a response may carry now, while others are held for a moment (hold.go in package
// downstream) or wait for an answer (ackorder.go there). Whether a name is removed at all depends on which subscription owns it: see overlap.go.
type RemovalRule int

// The removals that a response may carry.
const (
	RemoveNone RemovalRule = iota
	// RemoveAbsent is for what the client does not hold: it learns that something that it requested does not exist.
	RemoveAbsent
	// RemoveUnnamed is for members of sets: the client keeps what it requests by name.
	RemoveUnnamed
	RemoveAll
)
