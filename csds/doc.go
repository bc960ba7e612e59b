// Package csds serves the Client Status Discovery Service: what clients have of what they requested, and
// what the relay itself has of what it requested from control planes.
//
// A request without node_matchers is for the relay's own view, in one ClientConfig; that is what
// grpcdebug shows. With node_matchers it is for the clients that match, with one ClientConfig for each of
// their streams. What somebody may see is decided by the [Viewer] of the call.
//
// Nothing of an answer is held in memory but one response. A stream's answer is split into responses of
// about [chunkBytes]; that of the unary method has a limit. Secrets are masked.
package csds
