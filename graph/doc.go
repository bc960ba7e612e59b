// Package graph says which resources a resource names, and what follows from that for a set of
// them: what is missing, what nobody names, what a change of one touches.
//
// A reference is a field that names another resource: rds.route_config_name of an
// HttpConnectionManager, the cluster of a route. The tables of this package list those fields
// by their full names. They are found wherever they are, in Anys too, by a walk that only enters
// messages that can have one.
//
// Everything here is a value: no I/O, no locks that a caller could wait for, and nothing that
// takes longer than linear time in the size of its input.
package graph
