// Package sockets opens the sockets of listeners. A socket outlives the servers that accept its connections, and a
// listener can take over the socket of another one.
package sockets
