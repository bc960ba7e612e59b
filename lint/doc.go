// Package lint says what is wrong with a set of resources before a client does: what Envoy or gRPC
// would reject, references that lead nowhere, and what no client uses.
//
// The rules are a table, [Rules]. What clients require of one resource is in taster, which looks at
// everything that passes through the relay; lint gives those rules a severity, and adds rules about
// several resources, which follow from their references (package graph). Each rule has an example
// in testdata/rules that breaks it, and one that keeps it.
package lint
