// Package session implements the xDS protocol towards clients: the state of one type URL on one stream, in three forms.
// A [Delta] or a [SotW] belongs to a stream, a [Poll] to a request that is answered once.
//
// A session is a value without goroutines, locks, clocks and I/O. A request goes in, and responses come out. Changes
// come in through the stream ([Host]), which marks the subscriptions that have changed. A session reads the current
// state when the stream asks it for the next response. The expiry of a TTL is such a change, too. So every rule can be
// tested as a transcript.
//
// A lock of the stream guards its sessions, and the stream holds the cache (see [cache.Reader]) while they put a
// response together. What several clients share has locks of its own, behind small interfaces: see [WatchGroup] and
// [Response.ShareBatches].
//
// A subscription to a name takes 32 bytes: it is an element in the entry's list of watchers, and records there what it
// has sent. State that few subscriptions need is separate (rareSub). While a session reads the cache, it only notes which
// subscriptions have to move to other topics (redirects in follow.go, rollouts in sides.go, a new configuration in
// reconfigure.go), and moves them after that.
//
// What a client holds or has rejected is computed from this state when somebody asks: held.go, answers.go.
package session
