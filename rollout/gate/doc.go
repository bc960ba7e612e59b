// Package gate stands between the sources of an authority's resources and the cache, and lets
// changes through as a [rollout.Machine] decides. A [Controller] has a gate for each scope of an
// authority that has a rollout; where none is configured there is no gate, and nothing costs
// anything.
//
// # What flows where
//
//	source ──▶ gate ──▶ keeper, cache: the accepted topics, those that clients watch (Scope)
//	            │
//	            └─────▶ cache: the new topics, for the clients that are tried (Scope.New)
//
// The accepted topics are those that all clients watched if there were no rollout: so views,
// redirects, `#alt` and the store have what is accepted, without knowing it. What a source says
// of something that is accepted, and differs, is pending: the gate keeps it, and gives it to the
// new topics. A client that is shown the new state moves its subscriptions there, as for a
// redirect, and back when the rollout is over. A new topic is made when the first client watches
// it: what is accepted, with what is pending in its place. So of a resource there are at most two
// states, and most have one.
//
//   - A first answer is accepted, but for what another topic has in a state that is not (elsewhere.go).
//   - Types that are not rolled out pass, and have no new topics.
//   - What is removed is in the new topics, too, until everybody is there.
//   - A resource that has grown too much is pending and not in the new topics: it waits for a person,
//     and so do removals, since it may not refer to what replaces them.
//   - What changes after the first step of a rollout, or while it is frozen, is kept back (later.go): it is
//     pending, and in the new topics, when the rollout is over.
//   - The new topics change only after those clients were hidden from them who must not have the change: a
//     slot's showing is 0 by then. A stream reads that again once it holds the cache.
//   - What clients have rejected can wait for a person by itself (refusals.go).
//   - Settings change while a rollout goes on (configure.go): it goes on by the new ones.
//   - Rollouts come and go, and their types change, with the source: between two sources nothing comes. What is
//     pending and not rolled out any more is accepted then.
//   - A topic of which something is pending does not end: what comes next would be a first answer.
//   - Accepted and new topics have their own versions of the origin, which the gate makes of the
//     source's: the source changes its own when something comes that is not accepted.
//
// # Who owns which state
//
// gate.mu guards the machine, what is pending, and the new topics that are fed. It is held while the
// cache takes an update, so it comes after the locks of the sources and before those of a keeper and
// the cache. One goroutine for each gate performs what the machine decides. What clients do and what
// the cache asks for (Start, Stop) goes into its inbox, whose lock comes last. Controller.mu guards
// which gates and which clients there are; it comes before that of the inbox, and nothing else is
// called with it. A client's ACK costs a note in the inbox if the client is on the new side, and
// nothing otherwise.
//
// # Who is slow, gone or hostile
//
//   - A client that does not answer holds up the first step, until another one of its cohort has
//     taken the change: see package rollout.
//   - Several streams of one Node on one connection are one client. Several connections with one
//     node id are as many clients: id, id#1, and so on.
//   - Clients can make up cohorts. From 64 on all further ones are one, and from 16 on those that the same
//     identity or address begins. Package rollout bounds what one identity's rejections do.
//   - The control plane can change something all the time: it joins, and gets through after a bound.
//   - A scope that nobody uses has no gate, and remembers nothing.
package gate
