// Package failover decides which of several servers feeds the topics of a [cache.Scope], by
// priority, and knows which authorities are unreachable. gRFC A71: "xDS Fallback". Package feed
// runs it.
//
//	Machine       decides which servers to try and which one is active: events and the
//	              time go in, actions come out; it has no goroutine, lock, clock or I/O
//	Reachability  lists the unreachable scopes, for code that chooses between
//	              authorities (`#alt`)
//
// docs/failover.md describes the behaviour for users.
package failover
