// Package session holds the xDS protocol as a client of a control plane speaks it: the state of one
// type URL on one stream, as values without goroutines, locks, clocks and I/O. So every rule can be
// tested as a transcript.
//
// A type has [Topics] for each stream that it is requested on. Topics last as long as something is
// wanted, and a [Session] of them as long as the stream. A [Form] begins the session:
//
//	Names          the names that are wanted of one type, and what is known of them
//	Sets           the same for the wildcard and globs
//	Topics         the names and sets that share a stream: in delta, names and globs do
//	deltaSession   what was sent to the control plane, and has yet to be sent, of Topics in delta
//	sotwNames,     the same for names and for sets in SotW
//	sotwSets
//
// A session takes the interest in names, wildcards and globs ([Topics.Start], [Topics.Stop]), responses
// ([Form.Parse], [Session.Response]) and the time ([Session.Conclude], [Topics.Expire]). It returns
// requests ([Session.Requests]), and what the cache must store, as a [cache.Update]. The caller guards
// the topics and their session with one lock. It must send all requests, in order, and apply all
// updates, in order.
//
// Responses are not unmarshalled: a stored resource is cut out of the received
// bytes, and copied once. If the program knows a resource's type, it decodes the value once,
// to see that clients will be able to ([Response.Taste]).
//
// # Where the protocol leaves a choice
//
//   - If a response has a resource twice, the relay takes it if both copies are equal, and neither
//     if they differ. It sends a NACK in either case.
//   - A wildcard must be in the first request of its type on a stream. For a later wildcard the
//     relay opens a new stream. Otherwise a response that was already on its way would make the set
//     look smaller than it is, and go-control-plane would not send again what it
//     has sent by name or for an earlier wildcard. As clients can request any type, the relay
//     opens such streams at least 2 s apart, and doubles that time while it goes on. Until
//     then the wildcard waits, and everything else goes on.
//   - In delta, a glob may start at any time on a stream. Its members are the resources of its
//     directory, whether they were sent for the glob, for a wildcard or for their own names:
//     a control plane need not send a resource twice. The glob's own name in removed_resources, or in
//     resource_errors with NOT_FOUND, means that the glob is empty. If the resources that came may
//     have been sent for a name only, or for a glob or a name that was given up recently,
//     the set counts as known when nothing else has come for a second.
//   - SotW has no globs. The relay feeds all globs of a type from one wildcard. It does the same
//     if Config.NoGlobs says that a delta control plane does not know globs. If a control plane sends
//     xdstp resources only when they are requested by name, its globs are then empty.
//   - A redirect is stored under the redirected name, which must be in the Resource around the
//     ResourceLocator. The redirect must lead to one resource of the same type, or to an entry of
//     a list of such resources. Otherwise the relay rejects it like any bad resource. A glob itself
//     cannot be redirected.
//   - In delta, a wildcard's first answer may come in several responses, and nothing marks the last
//     one. The relay applies a small response at once. After a large one, it waits until nothing
//     has come for a time that depends on what it has seen of the control plane, see
//     habits.go. The set is incomplete in the cache until nothing has come for a while,
//     which is short once a later request was answered. Until then no client
//     gets the removal of a member that has not come yet. See grace.go.
//   - If a subscription is given up and wanted again before the relay has sent either change,
//     the control plane learns of neither: the new topic gets what is held.
//     So does a name whose resource came for a wildcard or a glob, until the name itself is
//     answered.
//   - A bad resource without a known name may be any that is missing. So the sets of the response
//     count as partial until the next good response. In delta that response need not have
//     the same resource.
//   - Several resources may list one alias. The alias stands for the one that listed it last. If
//     that resource no longer lists it, the alias stands for another. See aliases.go.
//   - Delta: an ACK or NACK changes no subscriptions. The documents allow that, but Istio
//     reports it as an error.
//   - Delta: versions that do not fit into the first request are left out, those of names before
//     those of a wildcard's members. The control plane sends such resources again. If one is gone,
//     the control plane reports that for a name, but not for a member. The relay logs how many
//     versions were left out.
//   - Delta: if a client holds the resource of a name from before the relay was started, the relay
//     lists the name in initial_resource_versions, with a version that no control plane uses.
//     Of a name that is not listed, go-control-plane does not report that it does not exist. See
//     resumed.go.
//   - Delta: a resource that came without a version is listed with its hash as the version. No
//     control plane knows that version, so it sends the resource again. But many (Istio) use the
//     listed names to find removed resources.
//   - SotW: the first request has the version of the previous stream only if everything that is
//     wanted was answered there. Otherwise the control plane might believe that the relay holds
//     all of that version.
//   - SotW: a name that was added later on a stream may be missing from a full response because
//     the response was already on its way. So only names of the first request, and names that had
//     a resource, count as absent at once. The others do when 15 s have passed and another full
//     response has come.
//   - SotW: a name without an answer for 15 s is silent, which is not absent: only clients that
//     never had the resource may treat it as absent. The 15 s begin with the first response on
//     the stream. Before that, a missing answer is an error, as in delta.
//   - SotW: a resource has the version of the last response that contained it. If a later response
//     leaves the resource out, it need not be the same in that version, as an answer may come
//     in parts. In delta it is the same.
//   - SotW: names cannot be split over several requests. A name that would make the request longer
//     than the limit is not requested, and fails with RESOURCE_EXHAUSTED. See budget.go.
//   - The relay presents the resources of another server as held only if the versions of both servers
//     mean the same, and only in delta. In SotW the version is one of the whole state, and
//     a missing resource would count as absent.
//   - TP2: a control plane may send variants that do not match the stream's parameters.
//     The relay leaves them out. If several match, it takes the one whose encoded
//     constraints sort first, and logs that.
//   - TP2: a removal without constraints removes the variant without constraints. If that
//     is not held, it removes all variants that came before the response.
//   - TP2: initial_resource_versions list names without constraints. So a variant
//     replaces any variant that came on an earlier stream.
//   - TP2, SotW: a variant replaces those that came in earlier responses, as SotW cannot
//     report that one of several variants is gone.
package session
