// Package failover decides which of several servers feeds the topics of a scope, by priority. gRFC A71: "xDS Fallback".
//
//	Machine  decides which servers to try and which one is active: events and the
//	         time go in, actions come out; it has no goroutine, lock, clock or I/O
//
// Package feed runs it, and docs/failover.md describes the behaviour for users.
package failover
