// Package taster reads a resource as clients will, and reports what they would reject before the resource is sent to
// any of them.
//
// There are two families of clients. Envoy decodes a resource and the contents of its google.protobuf.Any fields, and
// validates each message by the protoc-gen-validate rules in its API. gRPC decodes Listeners, RouteConfigurations,
// Clusters and ClusterLoadAssignments, and rejects what it does not support. The gRFCs say what that is, and the
// rules here name them.
//
// The package does not decide what happens to a resource that fails: that is the operator's choice, a [Mode]. [Tally]
// has the counts and failures that the operator sees.
//
// # What a control plane can cost
//
// Decoding takes memory in proportion to the messages in a resource, and two bytes can be a message. So the messages
// of a large resource are counted first. A message that is nested more than 100 deep, or a resource of more than 16
// MiB, is decoded but not checked further. Nested Anys are checked to a depth of 16. Budgets bound the comparisons of
// gRPC's rules; a resource passes the rest of its checks when they are used up. A panic of a validator is a finding
// like any other.
//
// No reason quotes a value, because values may be secrets.
package taster
