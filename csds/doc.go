// Package csds serves the Client Status Discovery Service: the resources that clients have or requested, and those
// that the relay itself has or requested from control planes.
//
// A request without node_matchers is for the relay's own view, in one ClientConfig, which grpcdebug shows. A request
// with node_matchers is for the clients that match, with one ClientConfig for each of their streams. The [Viewer] of
// the call decides what the caller may see.
//
// An answer takes the memory of only one response at a time. The streaming method splits the answer into responses of
// about [chunkBytes]; the unary method limits its size. Secrets are masked.
package csds
