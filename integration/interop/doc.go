// Package interop tests the relay between clients and control planes of other projects: each client with
// each control plane. At the end it prints the results as a table.
//
// A client sends RPCs to the shop. The control plane moves the shop to other endpoints, to another cluster,
// and back, and the RPCs have to follow. envoyproxy's rate limit service does not send RPCs to the shop. It
// loads its rules and follows their changes.
//
// The gRPC clients also authenticate, by certificates and by tokens in their call credentials, and their
// streams end when these expire. While the relay's certificates, CAs and keys are replaced, none of
// their streams ends and none of their handshakes fails. The relay passes Istio's identity check with
// the example in docs/istio.md.
//
// The package is a separate module, because Istio's discovery server needs more modules than the whole relay.
// `make interop` runs it. Of the project, it imports the package peers alone. Some clients need programs that are not
// Go modules: node and npm, python3 with venv, a JDK and Maven, and redis-server. Without them, the package skips
// these clients, or fails if CI=true is in the environment.
package interop
