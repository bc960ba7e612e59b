// Package peers runs the programs of the interoperability tests as subprocesses: the relay, and clients and
// control planes of other projects. It also prints what the tests have compared, and keeps docs/clients.md.
package peers
