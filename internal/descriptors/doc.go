// Package descriptors finds message types by their names: the types that Go packages of the program define, and
// types that only have descriptors. The latter are those of Envoy's contrib extensions, which are embedded, and those
// of the operator's descriptor sets ([Load], [Use]). Their messages are dynamic (dynamicpb): code that handles them uses
// reflection, and finds no validators.
//
// A type of a Go package wins over one of the operator's, and that over an embedded one.
package descriptors

//go:generate sh -c "cd ../tools/descriptors && go run ."
