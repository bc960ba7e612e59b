// Package lint finds faults in a set of resources before a client does: resources that Envoy or gRPC would reject,
// references to missing resources, and resources that no client uses.
//
// The rules are a table, [Rules]. Package taster has the rules about single resources, and checks them for everything
// that passes through the relay. Package lint gives those rules a severity, and adds rules about several resources,
// which follow from their references (package graph). Each rule has an example in testdata/rules that breaks it, and
// one that keeps it.
package lint
