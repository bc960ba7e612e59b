// Package certs manages the credentials that the relay presents and trusts in TLS handshakes: certificates, CAs and
// bearer tokens from files, and SVIDs and trust bundles from a SPIFFE agent.
//
// A [Store] reads files again when they change. While a file is broken, its last usable content stays in use. The TLS
// configurations of a Store use the newest credentials at each handshake. Open connections stay open.
package certs
