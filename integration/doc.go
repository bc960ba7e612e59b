// Package integration tests the built binary, which runs as a subprocess with real control planes and
// real clients, over loopback.
//
// The control planes are go-control-plane's server and, where a test needs one that misbehaves, handmade
// ones. The clients are gRPC's own xDS client, which sends RPCs to real backends, and raw xDS clients
// that follow the protocol and record all responses.
//
// The package uses only what a user of the relay knows, and imports no other package of the project. No
// test waits for a fixed time: tests wait for events, with a deadline that matters only if the event
// does not come.
package integration
