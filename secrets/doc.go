// Package secrets decides what is secret in a resource, and hides it. Whatever prints a
// resource, or a text that may quote one, uses this package.
//
// Secret is:
//
//   - a resource of type envoy.extensions.transport_sockets.tls.v3.Secret, or
//     envoy.api.v2.auth.Secret: all data in it, also certificates;
//   - every field that Envoy's API marks as sensitive, and a few credentials that it does not
//     mark, in whatever resource, however deep, and inside Any and TypedStruct.
//
// Where data is (the name of a file or of an environment variable) is not secret.
package secrets
