package downstream

// removalRule says which removals a response may carry.
type removalRule int

const (
	removeNone removalRule = iota
	// removeUnnamed: of what the client holds and asks for by name, none.
	removeUnnamed
	removeAll
)
