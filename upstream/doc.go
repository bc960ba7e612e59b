// Package upstream feeds the topics of one [cache.Scope] from a control plane,
// over one aggregated stream, as one well-behaved xDS client.
//
// The protocol is in plain values, without goroutine, lock, clock or I/O:
//
//	subscriptions   what is wanted of one type, and what is known of it; it
//	                lasts as long as somebody wants something
//	deltaSession    what the control plane has been told and has yet to be told
//	sotwSession     of that, in either form; it lasts as long as its stream
//
// Subscriptions, responses and the time go in, requests and [cache.Update] come
// out. A [Stream] does the rest: the goroutines, the clock and the connection.
//
// Responses are not unmarshalled: what is stored is cut out of the received
// bytes and copied once.
//
// # Where the protocol leaves a choice
//
//   - A response of a type that was not asked for on the stream is logged and not
//     answered. An answer would be the first request of its type, and that, having
//     no names, subscribes to everything.
//   - A subscription that is given up and wanted again before the control plane
//     has been told of either is no news for it: the new topic gets what is held.
//     So does a name that a wildcard has already given.
//   - Delta: an ACK changes no subscriptions. The documents allow it; Istio
//     reports it as an error.
//   - Delta: the versions that do not fit into the first request are left out, of
//     names first, of members of a wildcard last. What is left out comes again;
//     what is left out and gone is told gone if it was subscribed by name.
//   - Delta: a resource that came without a version is listed under the hash that
//     stands in for it. No control plane knows that version, so it sends the
//     resource again, but many (Istio) look at the names, to tell what is gone.
//   - Delta: a wildcard that is given up while the stream stays, and wanted again,
//     gets a new stream. go-control-plane takes what it sent for the first for
//     known to the second, and would call the set empty.
//   - SotW: the version of an old stream is only shown if all that is wanted was
//     known on it. Otherwise the control plane might take what is new for known.
//   - SotW: a name or wildcard that was added later on a stream may be missing
//     from a response because that was on its way. Only the first request's names,
//     and those that were there, are taken for absent at once; the others when
//     15 s have passed.
//   - SotW: names cannot be split over requests. If they exceed the limit they are
//     sent all the same: the limit is the usual one, not necessarily the server's.
//   - Protocol auto: once delta has been found UNIMPLEMENTED, SotW is used as long
//     as the Stream lives, unless that turns out UNIMPLEMENTED too. A control plane
//     that has learnt delta is served as well with SotW until the relay restarts.
package upstream
