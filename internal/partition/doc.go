// Package partition has the Nodes that the relay sends to control planes: its own, and one for each partition of
// old-style names, made from the Node of one of the partition's clients.
package partition
