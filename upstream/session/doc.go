// Package session holds the xDS protocol as a client of a control plane speaks it: the state of one
// type URL on one stream, as values without goroutines, locks, clocks and I/O. So every rule can be
// tested as a transcript.
//
// A type has [Topics] for each stream that it is requested on, which last as long as something is
// wanted. A [Session] of them lasts as long as the stream. A [Form] begins it:
//
//	Names          what is wanted of one type by name, and what is known of it
//	Sets           the same of a wildcard and of globs
//	Topics         those of them that share a stream: in delta, names and globs do
//	deltaSession   what the control plane has been sent and is yet to be sent of Topics in delta
//	sotwNames,     the same of names and of sets in SotW
//	sotwSets
//
// In go the interest in a name, a wildcard or a glob ([Topics.Start], [Topics.Stop]), responses
// ([Form.Parse], [Session.Response]) and the time ([Session.Conclude], [Topics.Expire]). Out come
// requests ([Session.Requests]) and what the cache is to store, as a [cache.Update]. The caller guards
// the topics and their session with one lock. It sends all requests, in order, and applies all
// updates, in order.
//
// Responses are not unmarshalled: what is stored is cut out of the received
// bytes and copied once. A value of a type that the program knows is decoded once
// on the way, to see that clients will be able to ([Response.Taste]).
//
// # Where the protocol leaves a choice
//
//   - A resource that is named twice is taken if it is the same both times. If it
//     is not, neither is. Both are a NACK.
//   - A wildcard is in the first request of its type on a stream, or there is a new
//     stream for it. Otherwise a response that was on its way would make its set
//     look smaller than it is, and go-control-plane would not send again what it
//     has sent by name or to a wildcard before. Clients choose types as they like: such
//     streams are 2 s apart, and twice as long each time while that goes on. Meanwhile
//     the wildcard waits, and everything else goes on.
//   - A glob may start on a stream of any age in delta. Its members are what is in its
//     directory, whether it came because of the glob, of a wildcard or of its own name: a
//     control plane need not send it twice. Its own name in removed_resources, or in
//     resource_errors as NOT_FOUND, says that it is empty. What comes may have been sent
//     because of a name only, or because of a glob or a name that was given up not long
//     ago: then the set counts as known when nothing else has come for a second.
//   - SotW has no globs. They are fed from the wildcard of their type, one for all of
//     them, and so they are of a delta control plane that is said not to know them
//     (Config.NoGlobs). One that gives xdstp names only to who names them has empty
//     globs then.
//   - A redirect is kept under the name that was redirected. It must have that name
//     outside, in a Resource, and lead to one resource of the same type, or an entry of
//     a list of such; otherwise it is rejected as any bad resource. A glob itself
//     cannot be redirected.
//   - Nothing marks the end of a wildcard's first answer in delta, which may come in
//     several responses. What a small one has is applied at once, after a large one nothing
//     else has to come for a time that depends on what is known of the control plane, see
//     habits. The set is incomplete in the cache until nothing has come for a while
//     (8 s, or 2 s of a control plane that was seen to be done by then), so that no client
//     is sent the removal of what comes later. See grace.go.
//   - A subscription that is given up and wanted again before the control plane
//     has been sent either is no news for it: the new topic gets what is held.
//     So does a name that a wildcard or a glob has already given, until it is answered
//     itself.
//   - A bad resource whose name is not known may be any that is missing: what the response
//     is of counts as partial until a response that is good. In delta that need not have
//     the same resource.
//   - Several resources may list one alias. It stands for the one that did so last, and if
//     that lists it no more, for another. See aliases.go.
//   - Delta: an ACK changes no subscriptions. The documents allow it; Istio
//     reports it as an error.
//   - Delta: the versions that do not fit into the first request are left out, of
//     names first, of members of a wildcard last. What is left out comes again; if
//     it is gone, the control plane says so of a name, but not of a member. That is
//     logged.
//   - Delta: what a client holds by a name from before the relay was started is listed in
//     initial_resource_versions, with a version that no control plane gives. go-control-plane
//     says of no other name that it does not exist. See resumed.go.
//   - Delta: a resource that came without a version is listed under the hash that
//     stands in for it. No control plane knows that version, so it sends the
//     resource again, but many (Istio) look at the names, to find what is gone.
//   - SotW: the version of an old stream is only shown if all that is wanted was
//     known on it. Otherwise the control plane might take what is new for known.
//   - SotW: a name that was added later on a stream may be missing from a full
//     response because that was on its way. Only the first request's names, and
//     those that were there, are taken for absent at once; the others when 15 s
//     have passed and another full response has come.
//   - SotW: a name that is not answered for 15 s is silent, which is not absent: only
//     who never had it may take it for that. The 15 s begin with the first response on
//     the stream. Before that no answer is an error, as it is in delta.
//   - SotW: a resource has the version of the last response that it was in. Silence
//     about a name does not say that it is the same in that version: an answer may come
//     in parts. In delta it does.
//   - SotW: names cannot be split over requests. What would make a request longer than
//     the limit is not asked for, and fails with RESOURCE_EXHAUSTED. See budget.go.
//   - What another server has said is offered to this one only where their versions
//     mean the same, and only in delta. In SotW the version is one of the whole, and
//     silence would be taken for absence.
//   - TP2: a control plane may send variants that do not match the stream's parameters.
//     They are left out. If several match, the relay takes the one whose encoded
//     constraints come first, and logs that.
//   - TP2: a removal without constraints removes the variant without constraints. If that
//     is not held, it removes all variants that came before the response.
//   - TP2: initial_resource_versions list names without constraints. So a variant that
//     comes replaces any variant that came on an earlier stream.
//   - TP2, SotW: a variant replaces those that came in earlier responses, as SotW cannot
//     say that one of several variants is gone.
package session
