// Package failover feeds the topics of one [cache.Scope] from several servers by
// priority, and reports which authorities are unreachable. gRFC A71: "xDS Fallback".
//
//	Machine       decides which servers to try and which one is active: events and the
//	              time go in, actions come out; it has no goroutine, lock, clock or I/O
//	Group         runs a Machine around the servers' feeds, and is the [cache.Source]
//	              of the scope
//	Single        the same for a scope with one server, of which only the reachability
//	              matters
//	Reachability  lists the unreachable scopes, for code that chooses between
//	              authorities (`#alt`)
//
// docs/failover.md describes the behaviour for users.
package failover
