// Package cache holds every resource once, encoded once, and notifies watchers of changes.
//
// There are two kinds of topics that can be watched: an [Entry] is one name, a [Set] is a wildcard
// or a glob. The first watcher of a topic starts its [Source]. When the last watcher has left, the
// topic lingers: the source keeps it fresh for a while, and then the cache drops it.
//
// Sources write with [Cache.Apply]. A watcher learns that something has changed, and reads the
// current state when it is ready to use it. So a slow watcher costs nothing, and receives the
// newest state without the steps in between.
//
// The package's layers, from below: resource (a resource's bytes), internal/members (what a set
// stores), topics (Entry, Set), the cache with its scopes, and readers.
//
// # What a resource costs
//
// A member of a set costs 64 bytes in addition to its own bytes. Its name and version are parts of its encoded bytes
// (resource/layout.go). A member is a record, and chunks of records are in the order of the changes (internal/members).
// The hash tables that find a member by its name store no keys (package hashtable). So whoever keeps a name for longer
// than its resource has to copy the name.
//
// What few topics need has its own place: heartbeats and errors of members (notes.go), the version of the origin, which
// all resources that came with it share (origin_version.go). Topics that
// nobody watches, and scopes with only such topics, have bounds of their own (idle.go, idlescopes.go), because clients
// can make up both.
//
// # Locks
//
//	gate.storing     serializes the updates of one scope
//	gate.topics      keeps readers of one scope from seeing a part of an update: see Cache
//	scopeTopics.mu   the maps of one scope's topics, and the beginning and end of each topic
//	topic.mu         the watchers of one topic, and the content of a Set
//	idle.mu          the order in which topics became idle
//	Cache.mu         the map of scopes
//	spellings.mu     how resources spell the names to which they refer: see spellings.go
//
// Locks are taken in this order; Cache.mu and gate.mu come last. Of locks outside of this package, only those of inboxes
// and of watch groups come after these. Only readers lock two scopes, and
// they do not wait for the second. An Entry's state is read without any lock.
package cache
