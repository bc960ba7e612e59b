// Package relay puts the relay together: it gives each scope (authority, partition, dynamic parameters) the source of
// its resources, maps the names that clients request to topics, and runs the server of each configured listener.
//
// The other packages do not know each other. This one turns the configuration into their options.
package relay
