// Package sessiontest is shared by the tests of the sessions and of the streams around them. It has
// the words of transcripts, and a control plane that does what the protocol document says. It does
// not import the sessions.
package sessiontest
