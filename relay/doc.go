// Package relay puts the relay together: it gives each scope (authority, partition, dynamic parameters) the source of
// its resources, maps the names that clients request to topics, and runs the server of each configured listener.
//
// The other packages do not know each other. This one turns the configuration into their options.
//
// # Generations
//
// All that follows from one configuration is a generation, which is immutable (generation.go). One atomic pointer points
// to the newest. Code that lives longer than a generation loads the pointer each time. A reload first prepares all that
// may fail, and then swaps the pointer (reload.go). What the configuration leaves unchanged lives on: an origin keeps its
// connections, a listener its socket (internal/sockets). A scope whose origin has changed gets a new source for the same topics
// (replace.go), and those of one control plane do so in turns (pacing.go).
//
// # Locks
//
// The cache calls scopes with its own locks held: scopes.mu and origins.mu come after these, and before the inboxes of
// sources. partition.Nodes.mu comes after scopes.mu. All other locks of this package come last.
//
// Each step of a shutdown is bounded: package process.
package relay
