// Package taster reads a resource as its clients will, and says what they would reject, before
// any of them is sent it.
//
// There are two families of clients. Envoy decodes a resource and what is in its
// google.protobuf.Any fields, and validates each message by the rules of protoc-gen-validate in
// its API. gRPC decodes Listeners, RouteConfigurations, Clusters and ClusterLoadAssignments,
// and rejects what it does not support: the gRFCs say so, and the rules here name them.
//
// The package does not say what becomes of a resource that fails: [Mode] does, which is the
// operator's choice. [Tally] has what the operator sees of it.
//
// # What a control plane can make it cost
//
// Decoding takes memory in proportion to the messages in a resource, of which two bytes can be
// one; so those of a large resource are counted first. A message that is nested more than 100
// deep is decoded and not looked at any further, as is one of more than 16 MiB. An Any in an Any
// is looked at to a depth of 16. What gRPC's rules compare with each other is bounded by
// budgets; beyond them a resource passes. A panic of a validator is a finding like any other.
//
// No reason quotes a value: values may be secrets.
package taster
