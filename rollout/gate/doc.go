// Package gate stands between the sources of an authority's resources and the cache. It lets changes through as a
// [rollout.Machine] decides. A [Controller] has a gate for each scope of an authority that has a rollout. Without a
// configured rollout there is no gate and no cost.
//
// # What flows where
//
//	feed ──▶ gate ──▶ feed, cache: the accepted topics, those that clients watch (Scope)
//	            │
//	            └─────▶ cache: the new topics, for the clients that are shown the new state (Scope.New)
//
// Accepted topics are the ones that all clients would watch without a rollout. So views, redirects, `#alt` and the
// store use accepted state without knowing of rollouts. A resource from a source that differs from the accepted one
// is pending: the gate keeps it and gives it to the new topics. A client that is shown the new state moves its
// subscriptions to the new topics, as for a redirect, and moves back when the rollout is over. The gate creates a new
// topic when the first client watches it: the accepted topic, with the pending resources in their places. So a
// resource has at most two states, and most have one.
//
//   - A source's first answer for a topic is accepted, except for resources of which another topic has pending state
//     (elsewhere.go).
//   - Types that are not rolled out pass through and have no new topics.
//   - Removed resources to which others may refer stay in the new topics until all clients have the new state. Removals
//     of other types are in the new topics from the beginning: what takes the place of a removed resource comes with the
//     removal.
//   - While a first answer is incomplete, what is missing in a set may still come. So the gate names what one side has
//     and the other does not: clients that change sides lose it at once.
//   - A resource that has grown too much is pending but not in the new topics: it waits for a person to approve it.
//     Removals wait with it, since it may still refer to the removed resources instead of their replacements. Those of
//     types to which nothing refers wait only with resources of their own type.
//   - Changes after the first step of a rollout, or while it is frozen, wait (later.go). They become pending, and
//     appear in the new topics, when the rollout is over.
//   - Before the new topics change, the gate moves away the clients that must not get the change: it sets a slot's
//     showing to 0. A stream reads showing again once it holds the cache's snapshot lock.
//   - Resources that clients have rejected can wait for a person separately from the rest (refusals.go).
//   - Settings can change during a rollout (configure.go), which then continues with the new settings.
//   - Whether a scope has rollouts, and of which types, changes only together with its source, and no updates arrive
//     between two sources. Pending resources of types that are no longer rolled out are accepted then.
//   - A topic with pending state does not end: otherwise the next update would be a first answer.
//   - Accepted and new topics have their own origin versions, which the gate derives from the source's. The source
//     updates its own version in place, even when the gate does not accept the update.
//
// # Who owns which state
//
// gate.mu guards the machine, the pending state, and the new topics that the gate feeds. The gate holds it while the
// cache applies an update. So it comes after the locks of the sources and of the scope's feed, and before those of the
// cache. Before it accepts changes on its own, it locks the feed.
// One goroutine for each gate performs the machine's decisions. Events from clients and from the cache (Start, Stop)
// go into the gate's inbox, whose lock comes last. Controller.mu guards the sets of gates and clients. It comes
// before the inbox's lock, and no other lock is taken while it is held. A client's ACK costs one inbox event if the
// client has the new state, and nothing otherwise.
//
// # Slow, absent and hostile clients
//
//   - A client that does not answer delays the first step until another client of its cohort has accepted the change:
//     see package rollout.
//   - Several streams of one Node on one connection are one client. Several connections with the same node id are
//     separate clients: id, id#1, and so on.
//   - Clients can invent cohorts. Beyond 64 cohorts, all further ones share a cohort. So do those beyond 16 that the
//     same identity or address started. Package rollout limits the effect of one identity's rejections.
//   - A control plane that changes resources all the time does not block itself: its changes join the rollout, and
//     pass after a bounded time.
//   - An unused scope has no gate and no remembered state.
package gate
