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
// come over gRPC as the Fetch methods, and over HTTP as REST-JSON.
package downstream
