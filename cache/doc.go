// Package cache holds every resource once, encoded once, and tells whoever
// watches it that it has changed.
//
// There are two kinds of things to watch, which the package calls topics: an
// [Entry] is one name, a [Set] is a wildcard or a glob. The first watcher of a topic
// starts the [Source]; when the last one has left, the topic lingers, fed and fresh,
// for a while and is then given up.
//
// Sources write with [Cache.Apply]. Watchers are told that something changed,
// not what: they read the current state when they are ready to use it, so a
// slow one costs nothing and gets the newest state with the steps in between
// left out.
//
// # Locks
//
//	gate.storing     the updates of one scope, one after another
//	gate.topics      what topics of one scope hold, against an update: see Cache
//	scopeTopics.mu   the maps of one scope's topics, and the beginning and end of each topic
//	topic.mu         the watchers of one topic, and what a Set holds
//	idle.mu          the order in which topics fell idle
//	Cache.mu         which scopes there are; it comes last, as gate.mu does
//
// They are taken in this order, and nobody takes those of two scopes but readers, who do not
// wait for the second. An Entry's state is read without any lock.
package cache
