// Package relay puts the relay together: it gives each scope (authority, partition, dynamic
// parameters) a source of its resources, clients' names their meaning, and each configured
// listener its server.
//
// Everything else of the project is a part that knows nothing of the others; the
// configuration becomes their options here.
package relay
