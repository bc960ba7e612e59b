// Package collections feeds the topics that are made of other topics: names whose
// resource is a redirect, or that have directives, and sets that are more than what
// one authority gives under one name. TP1: "Server redirects", "Alternatives",
// "Collections".
//
// What an authority says is in leaf topics, raw. A [Resolver] watches those that a
// derived topic depends on, and writes what comes of them to the cache, where it is
// watched like anything else: computed once, shared by all.
//
//	leaf      a leaf entry that is watched, as long as an evaluation comes by it;
//	          of a list collection, with what it was taken apart to
//	follow    one URL, evaluated: the plain recursion of TP1's rules over the leaf
//	          entries, done anew whenever one of those that it used has changed. So
//	          there is no graph to be kept, and a loop is a name met twice on the way
//	choice    what is remembered from one evaluation to the next: which of a URL and
//	          its alternative is in use, and since when it could be the other
//	source    where members of a set come from: a glob, a list collection, either with
//	          an alternative, or a single member, which is a follow. It offers them
//	          and what has changed of them, so that one change costs the work of one
//	union     the members of several sources; of two of one name the first source's
//	node      a derived topic: an entry is one follow, a set is a union
//
// An evaluation has at most Options.Depth redirects and alternatives in a row, so it
// ends, whatever control planes say; and it is over when it has come upon a loop.
//
// What cannot be had any more, or is not known yet, is no reason to take away what
// clients have: a result that is Requested is not written, and the cache keeps the
// last good state of what Failed.
//
// All of it belongs to one goroutine, the Resolver's. Watchers and the cache's calls
// of Start, Refresh and Stop leave notes for it. It evaluates what has changed while
// no update is stored in the scopes that it reads (cache.Holds), and writes the results after
// that. How much there
// is to do is for control planes to decide, so that it is done in turns (line).
package collections
