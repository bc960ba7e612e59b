package session

// RemovalRule says which removals a response may carry.
type RemovalRule int

// The removals that a response may carry.
const (
	RemoveNone RemovalRule = iota
	// RemoveUnnamed is for members of sets: the client keeps what it asks for by name.
	RemoveUnnamed
	RemoveAll
)
