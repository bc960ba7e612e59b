package session

// RemovalRule is which removals a response may carry now, while others are held for a moment (hold.go in package
// downstream). Whether a name is removed at all depends on which subscription owns it: see overlap.go.
type RemovalRule int

// The removals that a response may carry.
const (
	RemoveNone RemovalRule = iota
	// RemoveUnnamed is for members of sets: the client keeps what it requests by name.
	RemoveUnnamed
	RemoveAll
)
