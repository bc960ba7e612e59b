// Package certs is what the relay shows and trusts in TLS handshakes: certificates, CAs and
// bearer tokens from files, and SVIDs and trust bundles from a SPIFFE agent.
//
// A [Store] reads the files again when they change. What a file had last, and could be used,
// stays in use while the file is broken. TLS configurations that a Store returns take the
// newest at each handshake; connections that are open stay.
package certs
