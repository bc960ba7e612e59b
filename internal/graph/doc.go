// Package graph finds the resources that a resource references, and derives facts about a set of resources: which are
// missing, and which are unused.
//
// A reference is a field that names another resource: rds.route_config_name of an HttpConnectionManager, the cluster
// of a route. The tables of this package list those fields by their full names. A walk finds them at any depth, also
// in Anys. It enters only messages that can contain a reference.
//
// Everything here is a value: no I/O, no locks that a caller could wait for, and no operation that takes more than
// linear time in the size of its input.
package graph
