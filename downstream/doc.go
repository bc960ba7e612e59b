// Package downstream serves clients: it turns the watched state of the cache
// into the xDS protocol, SotW and delta.
//
// The protocol is in two plain values, one per type URL on a stream: a
// deltaSession or a sotwSession. A request goes in, responses come out; no
// goroutine, clock or I/O is inside, so that every rule can be tested as a
// transcript. What has changed in the cache is marked in the stream's inbox;
// the sessions read the state when they are asked for the next response.
//
// The stream around them does the I/O: one goroutine receives, and a second one
// lives only while there is something to send. A client that does not read
// holds up that second goroutine, and nothing else: what it missed is not
// queued, but read from the cache when it can be sent.
//
// A client that polls has for each request such a stream without I/O, until there
// is a response or the time is over: over gRPC as the Fetch methods, and over HTTP
// as REST-JSON.
package downstream
