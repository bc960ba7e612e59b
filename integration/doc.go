// Package integration tests the built binary: it runs as a subprocess, with
// real control planes and real clients, over loopback.
//
// The control planes are go-control-plane's server, and where a test needs one
// that misbehaves, a handmade one. The clients are gRPC's own xDS client, which
// sends RPCs to real backends, and raw xDS clients that keep to the protocol and
// write down all that they were sent.
//
// The package knows of the relay what its user knows, and imports nothing of
// ours. Nothing waits for time to pass: tests wait for what is to happen, with a
// deadline that only counts when it does not.
package integration
