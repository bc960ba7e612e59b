// Package interop holds that clients and control planes that others wrote meet
// through the relay: each client with each control plane, and what came of it as
// a table at the end.
//
// A client finds the shop, sends RPCs to it, and follows when the control plane
// moves it: to other endpoints, to another cluster, and back. envoyproxy's rate
// limit service, which sends no such RPCs, loads its rules and follows their
// changes.
//
// The gRPC clients also prove who they are, by certificates and by tokens in their call
// credentials, and are told when what they have shown expires. While the relay's certificates, CAs
// and keys are replaced, none of their streams ends and none of their handshakes fails. Istio's
// identity check learns who the relay is from the example in docs/istio.md.
//
// The package is a module of its own, because Istio's discovery server needs
// more modules than all of the relay; `make interop` runs it. It imports nothing
// of ours. Some clients need programs that are no Go modules: node and npm,
// Debian's python3-grpcio and redis-server. Without them these clients are left
// out, and fail if CI=true is in the environment.
package interop
