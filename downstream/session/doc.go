// Package session holds the xDS protocol as this server speaks it: the state of one type URL on one
// stream, in three forms. A [Delta] or a [SotW] belongs to a stream, a [Poll] to a request that is
// answered once.
//
// A session is a value without goroutines, locks, clocks and I/O. A request goes in, and responses
// come out. Changes come in through the stream ([Host]), which marks the subscriptions that have
// changed; a session reads the current state when the stream asks it for the next response. The
// passing of time is such a change too. Every rule can therefore be tested as a transcript.
//
// The stream guards its sessions by a lock, and holds the cache (see [cache.Reader]) while they put
// a response together. What several clients share has locks of its own, and is behind small
// interfaces: see [WatchGroup] and [Response.Batches].
package session
