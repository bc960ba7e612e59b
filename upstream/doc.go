// Package upstream feeds the topics of one [cache.Scope] from a control plane, as
// one well-behaved xDS client: [Aggregated] over one aggregated [Stream], or [Streams]
// over one for each type, from the types' own services or by polling (REST-JSON).
//
// The protocol is in plain values, in package session. A [Stream] does the rest: the goroutines,
// the clock and the connection. Polling looks like a gRPC stream to it (pollStream), on a
// [RESTConn].
//
// # Where the protocol leaves a choice
//
// What the sessions decide is in the documentation of package session.
//
//   - A control plane may end a stream on which a type is requested that it does not have
//     (go-control-plane's MuxCache does). When it has done so, types that it has never
//     answered get streams of their own until it answers them, at most 16 of a scope. So one
//     client's type does not keep the others from what they request. See [Aggregated].
//   - A response of a type that was not asked for on the stream is logged and not
//     answered. An answer would be the first request of its type, and that, having
//     no names, subscribes to everything.
//   - Names of a type of which a wildcard is wanted are requested on a second stream. `*`
//     together with names is in the document, but in delta nothing says which resources are
//     the wildcard's members and which are for names, and SotW control planes (go-control-plane's
//     snapshots) take `*` for one more name. Between the two streams there is no order. See
//     namesstream.go.
//   - When a stream that has brought a response ends, no client is sent an error. Only if
//     the next one brings none, those that wait for an answer are. gRFC A57: "Handling ADS
//     Stream Termination".
//   - Protocol auto: once delta has been found UNIMPLEMENTED, SotW is used as long
//     as the Stream lives, unless that turns out UNIMPLEMENTED too. A control plane
//     that has learnt delta is served as well with SotW until the relay restarts.
//   - TP2: a scope has dynamic parameters, and so each set of them has its own stream.
//     On one stream, a removal or an error without constraints could be about any of them.
//   - REST: a request with names that are new goes without a version, at once. The
//     documents do not ask for that, but control planes that compare versions only
//     (go-control-plane) would say that there is nothing new.
//   - REST: an ACK or NACK goes with the next poll, and a NACK with each until there
//     is another version. Sent at once, it would bring the same at once.
//   - REST: silence says nothing until what is asked for now has been answered.
//   - REST: a response of a version that is held, or that was the last one, says
//     nothing new, whatever is in it.
//   - REST: what has a TTL is asked for without a version, because nothing new would
//     not renew it.
//   - REST: a field that is not known here cannot be passed on, as it is in
//     protobuf: the resource is rejected.
package upstream
