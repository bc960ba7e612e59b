// Package feed is the corridor between what sources say and what clients are served. A Feed is the way of one scope's
// sources to the cache. feed.go says what may happen to a change on the way:
//
//	Source ──Deliver──▶ pick (failover) → resolve → hold (guard) → stage (rollout) → accept ──▶ cache, then notes to history and store
//
//	feed.go     the way of a delivery
//	resolve.go  what an answer removes
//	servers.go  which sources are open, and which of them counts
//	topics.go   which topics there are: calls of the cache, for the sources and the judges
//	stored.go   what is served from the store while no server answers
//	wanted.go   which topics have no answer
//	ttls.go     TTLs of resources whose server does not count any more
//
// The stages are judges, which are values: failover.Machine, guard.Guard and store.Keeper have no lock, goroutine or
// timer. Only a rollout has its own goroutine: see package rollout/gate.
//
// # What a source says and clients do not have
//
// It is where it is decided, because the cases have different keys and readers. The guard has a deviation for each held
// member or content. A rollout's gate has the changes that are rolled out or wait, under a lock that clients' streams
// need. The keeper has topics of which no server has said anything yet. That a topic is stale or outdated is a bit of the
// topic in the cache, where sessions read it. The judges compare an update with what the cache has (Cache.Before), after
// resolve has named everything that it removes.
//
// # Locks
//
// Feed.mu is held from the delivery to the end of cache.Apply, so it comes after the lock of the source's stream, and
// before those of a rollout's gate and of the cache. The cache calls Start and the other methods of topics with its own
// locks held: these take the lock of the inbox only.
//
// # Slow, absent and hostile parties
//
//   - A slow disk: what is stored of a topic is read by a goroutine without locks. A delivery, or the first request of a
//     type, waits for it no longer than a second after the topic has begun.
//   - A source that is closed is not heard any more, whatever its goroutines are still doing.
//   - A Feed has no goroutine of its own, and a timer only while something is due.
package feed
