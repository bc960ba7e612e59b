// Package fleet makes several relays one client of the control planes: it knows which relays there are and which of them
// answer, and decides for each scope from which of them a relay gets the scope's resources.
//
// Each scope has an owner among the members, by rendezvous hashing. The owner gets the scope from the authority's servers,
// and the other members get it from the owner, over xDS. A Fleet only decides: package relay opens the streams.
//
// # No loops, two hops at most
//
// A relay gets a scope only from a member that scores higher for the scope than itself, and all relays compute the same
// scores. So "gets from" is an order, whatever each of them believes about who is there. A relay from which a peer gets a
// scope uses the authority's servers for it, also if it does not own the scope by its own view: see [Fleet.Serve].
//
// # A new owner is warm
//
// A relay that owns a scope and has nothing of it first gets the scope's state from a member that has it (takeover.go). Then
// it resumes at the authority's server with the versions of that state.
//
// # What is lost with the membership
//
// Nothing. A list that cannot be read any more stays as it was last. Whether a member is there is decided by its
// connection (peer.go), and a relay that reaches no member uses the authority's servers for everything, as without a
// fleet. Two relays that both believe they own a scope cost one stream too many.
//
// # Locks
//
// Fleet.mu comes last. Nothing is called with it held.
package fleet
