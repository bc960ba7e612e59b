// Package sessiontest has what tests of the sessions and of the streams around them have in common:
// the words of transcripts, and a control plane that does what the protocol document says. It does
// not know the sessions.
package sessiontest
