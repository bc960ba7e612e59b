// Package collections feeds derived topics: topics whose content the relay computes
// from other topics. These are names whose resource is a redirect, names with
// directives, and sets that combine collections. TP1: "Server redirects",
// "Alternatives", "Collections".
//
// Leaf topics hold the resources that an authority sent, unchanged. A [Resolver] watches
// the leaf topics on which a derived topic depends, and writes the result to the cache.
// Clients watch it there like any other topic: the relay computes it once for all of them.
//
//	leaf       a watched leaf entry, kept while a lookup uses it. For a list collection it
//	           also has the parsed entries
//	lookup     finds the resource to which a URL leads: a plain recursion over the leaf
//	           entries by TP1's rules, repeated whenever an entry that it used has changed.
//	           There is no dependency graph to keep, and a loop is a name that occurs twice
//	           on the path
//	choice     the state that one evaluation passes to the next: whether a URL or its
//	           alternative is in use, and since when the other could be used
//	source     gives the members of a set: a glob, a list collection, one of these with
//	           an alternative, or a single member. A source passes on single changes, so
//	           the cost of a change does not depend on the number of members
//	union      merges the members of several sources. Of two members with one name, the
//	           member of the first source wins
//	derived    a derived topic: an entry is one lookup, a set is one union
//
// An evaluation follows at most Options.Depth redirects and alternatives in a row and
// stops at a loop, so it ends whatever control planes send.
//
// Clients keep their resources while the result is unknown or an error: a Requested
// result is not written, and the cache keeps the last good state of an entry that
// Failed.
//
// One goroutine, the Resolver's, owns all of this state. Watchers, and Start, Refresh
// and Stop, only add to its inbox. The goroutine evaluates changes while no update is
// stored in the scopes that it reads (cache.ReadLocks), and writes the results afterwards.
// Control planes decide how much work there is, so the work waits in queues that take
// turns (queues.go, work.go).
package collections
