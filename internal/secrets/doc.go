// Package secrets decides what is secret in a resource, and hides it. All code that prints a resource, or a text that
// may quote one, uses this package.
//
// These are secret:
//
//   - a resource of type envoy.extensions.transport_sockets.tls.v3.Secret, or envoy.api.v2.auth.Secret: all data in
//     it, including certificates;
//   - every field that Envoy's API or a descriptor set marks as sensitive, and a few credentials that Envoy's API does
//     not mark, in any resource, at any depth, and inside Any and TypedStruct.
//
// The location of data (the name of a file or of an environment variable) is not secret.
package secrets
