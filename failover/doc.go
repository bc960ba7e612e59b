// Package failover feeds the topics of one [cache.Scope] from several servers by
// priority, and says which authorities can be reached. gRFC A71: "xDS Fallback".
//
//	Machine   decides which servers are tried and whose word counts: events and the
//	          time go in, actions come out; it has no goroutine, lock, clock or I/O
//	Group     carries that out around the servers' feeds, and is the
//	          [cache.Feeder] of the scope
//	Reach     which scopes cannot be reached, and since when, for who chooses
//	          between authorities (`#alt`)
//
// What a user has to know of it is in docs/failover.md.
package failover
