// Package collections feeds the topics that are made of other topics: names whose
// resource is a redirect, or that have directives, and sets that are more than what
// one authority gives under one name. TP1: "Server redirects", "Alternatives",
// "Collections".
//
// What an authority says is in leaf topics, raw. A [Resolver] watches those that a
// derived topic depends on, and writes what comes of them to the cache, where it is
// watched like anything else: computed once, shared by all.
//
//	follow    one URL, evaluated: the plain recursion of TP1's rules over the leaf
//	          entries, done anew whenever one of those that it used has changed. So
//	          there is no graph to be kept, and a loop is a name met twice on the way
//	node      a derived topic: an entry is one follow, a set is many
//
// All of it belongs to one goroutine, the Resolver's. Watchers and the cache's calls
// of Start, Refresh and Stop leave notes for it.
package collections
