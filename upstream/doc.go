// Package upstream feeds the topics of one [cache.Scope] from a control plane, as
// one well-behaved xDS client. [Aggregated] uses one aggregated [Stream]. [Streams] uses a Stream
// for each type, from the type's own service or by polling (REST-JSON).
//
// Package session has the protocol, in plain values. A [Stream] does the rest: the goroutines,
// the clock and the connection. To a Stream, polling looks like a gRPC stream (pollStream) on a
// [RESTConn]. The clients concerned are woken before a response gets its ACK or NACK.
//
// # Locks
//
//	Stream.mu      the subscriptions and the session; that of a first stream comes before that of its names stream. It is
//	               held during a delivery, so the locks of the feed and the cache come after it
//	pollStream.mu  what is polled for; comes after Stream.mu
//	peers.mu       the streams of one scope to one control plane; comes after Stream.mu
//	Aggregated.mu  which types have a stream of their own; comes after Stream.mu and the cache's locks
//	Streams.mu     the stream of each type; comes after the cache's locks
//
// The inbox of a Stream comes after all of these, and after the cache's locks. All other locks come last.
//
// # Slow, absent and hostile control planes
//
//   - One that only is silent keeps its streams. A half-open connection is found by a probe (scannedconn.go).
//   - After a loss the relay serves all that it holds, and resumes with it (backoff.go, session/recall.go).
//   - What cannot be stored is NACKed with the reason, and the good resources of the response are used. A panic of a
//     validator is a finding.
//   - One that ends streams because of a name gets a stream without the suspects (quarantine.go).
//   - One that allows few streams on a connection gets further connections, up to 100 (conn.go).
//   - Polls have bounded answers, and HTTP redirects are not followed (rest.go).
//   - A large response is processed in parts, between which its goroutine yields (session/yield.go). Its length is known
//     from its first bytes (messagescanner.go), so that the runtime is tuned in time (package process).
//
// # Where the protocol leaves a choice
//
// The documentation of package session has the choices of the sessions.
//
//   - A control plane may end a stream because a type is requested on it that the control plane
//     does not have (go-control-plane's MuxCache does). After that, each type that it has never
//     answered gets a stream of its own until it answers the type, at most 16 in a scope. So the
//     types that one client requests do not keep other clients from theirs. See [Aggregated].
//   - A response of a type that was not requested on the stream is logged, and gets no ACK or
//     NACK. An ACK would be the first request of its type. As it has no names, it would subscribe
//     to everything.
//   - If a wildcard of a type is wanted, names of that type are requested on a second stream. The
//     xDS document allows `*` together with names. But in delta nothing says which resources are
//     the wildcard's members and which are for names, and SotW control planes (go-control-plane's
//     snapshots) take `*` for one more name. Between the two streams there is no order. See
//     namesstream.go.
//   - When a stream ends on which a response came, no client gets an error. If the next stream
//     brings no response, clients that wait for an answer get one. gRFC A57: "Handling ADS
//     Stream Termination".
//   - Protocol auto: once the control plane has answered delta with UNIMPLEMENTED, a Stream uses
//     SotW for as long as it lives, unless SotW is UNIMPLEMENTED too. A Stream does not notice
//     that the control plane has learnt delta since.
//   - TP2: a scope includes dynamic parameters, so each set of parameters has its own stream.
//     On a shared stream, a removal or an error without constraints could be about any of them.
//   - REST: a request with new names is made at once, and without a version. The
//     documents do not require that, but control planes that compare versions only
//     (go-control-plane) would answer that there is nothing new.
//   - REST: an ACK goes with the next poll, and a NACK with each poll until there
//     is another version. If the relay polled at once, it would get the same response at once.
//   - REST: silence means nothing until the control plane has answered a poll for the current
//     names.
//   - REST: a response with the accepted version, or with the version of the last response to the
//     same names, counts as unchanged, whatever its resources are.
//   - REST: resources with a TTL are polled without a version, because the answer that nothing is
//     new would not renew the TTL.
//   - REST: the relay rejects a resource with a field that it does not know. Other than in
//     protobuf, it cannot pass such a field on.
package upstream
