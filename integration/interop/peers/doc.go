// Package peers runs the programs of the interoperability tests as subprocesses: the relay, and clients and
// control planes of other projects.
package peers
