package session

// RemovalRule says which removals a response may carry now, while others are held back for a moment
// (hold.go in package downstream). Whether a name is removed at all is decided by who owns it: see
// overlap.go.
type RemovalRule int

// The removals that a response may carry.
const (
	RemoveNone RemovalRule = iota
	// RemoveUnnamed is for members of sets: the client keeps what it asks for by name.
	RemoveUnnamed
	RemoveAll
)
