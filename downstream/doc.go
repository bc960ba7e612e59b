// Package downstream serves clients: it turns the watched state of the cache
// into the xDS protocol, SotW and delta.
//
// Package session holds the protocol: one value for each type URL on a stream. A request goes in, responses come out.
// This package holds everything around it: services and listeners, streams, the limits of clients, the senders, and
// what clients with the same names share.
//
// One goroutine of a stream receives. The inbox notes which subscriptions have changed in the cache, and queues the
// stream for a sender. The sender asks the sessions for the next response. A client that does not read holds up that
// sender for a moment, and nobody else. What the client has missed is not queued: it is read from the cache when it can
// be sent.
//
// A request of a client that polls gets such a stream without I/O, until there is a response or the time is over. Polls
// come over gRPC as the Fetch methods, and over HTTP as REST-JSON. The relay keeps no state for such a client between
// its requests.
//
// # What clients share
//
// A herd of clients that are configured alike costs little more than one of them:
//
//	decode.go          names of requests are interned
//	namelist.go        a list of names is found by its bytes, and not decoded again
//	namegroup.go       clients with one list watch its names as a group, which numbers the changes: a client is a
//	                   position in them. groupsides.go does that for both sides of a rollout
//	batches.go         clients outside of groups share the buffer of equal responses
//	sharednodes.go     Nodes that differ only in their ids share the rest
//	requestworkers.go  workers process requests, so that streams that wait have small stacks
//
// An ACK is not decoded at all (wire.Peek).
//
// # When a client is sent something
//
//	compose.go      types in their order: make before break. A type that changes at each turn does not go first forever
//	ackorder.go     what waits until the client has answered
//	hold.go         removals that wait for a moment
//	warming.go      what Envoy waits for and is sent again
//	flow.go         a client that lags is sent nothing until it answers
//	reconfigure.go  a new configuration: removals wait until every subscription that moved has an answer
//	trials.go       the new side of a rollout, and back
//
// # When a stream is admitted
//
// The relay reads the requests of as many new streams at a time as keep its processors busy: a stream has a place from
// its admission until it has nothing more to send. The others wait in line, without having cost anything.
//
//	admission.go         whether a stream waits, and why one is refused
//	admissionturns.go    whose turn it is: on each level of identities, addresses and connections, of the one that has the
//	                     fewest places
//	admissionline.go     places, and for how long a stream has one that waits for its client
//	admissionwindow.go   how many places there are: more while processors are idle, fewer while goroutines wait for them
//
// # Locks
//
//	stream.mu          a stream, its sessions and the scopes that it uses
//	watchGroup.moving  held while clients of a group change sides; comes before the cache's locks
//	nameList.mu        the groups of a list; comes before the cache's locks
//	watchGroup.mu      the names and changes of a group; comes after the cache's locks
//	inbox.mu           which subscriptions of a stream have changed; comes after watchGroup.mu
//
// Locks are taken in this order. All others, such as line.mu, come last.
//
// # Slow, absent and hostile clients
//
//   - A client that does not read holds up a sender for 1 to 2 ms. Then another sender takes its place (senders.go).
//   - The parts of a request are counted before it is decoded, so that it cannot cost more than its bytes
//     (requestcost.go). A stream that goes over a limit ends (gate.go). Requests that come too fast are read more slowly
//     (pace.go).
//   - HTTP/2 frames that are no requests are counted, over REST too (frames.go, restconns.go). Addresses whose
//     connections end soon are accepted later (churn.go).
//   - What takes much, such as a large request, is done in turns that are fair among identities (places.go).
//   - If memory is scarce, the clients with the most names get no further names, and then lose their streams (memory.go).
//   - A stream on which nothing can be served ends, so that the client tries its next server (unreachable.go).
package downstream
