// Package grpcreason says why a gRPC server could not be used, in words for people: gRPC nests its reasons, and some of them name
// the consequence only.
package grpcreason

import (
	"strings"
)

// Cause is what a reason lets one guess.
type Cause uint8

// The causes.
const (
	Other         Cause = iota
	WantsTLS            // the server has ended a plaintext connection in its first bytes, as servers do that want TLS
	Plaintext           // the server speaks no TLS
	HTTP1               // the server speaks HTTP/1.1
	NotGRPC             // the server has answered as an HTTP server without gRPC
	NoService           // the server does not have the service
	NoCertificate       // the server wants a certificate of the client
	NoAddress           // DNS has no address for the name
)

// Plain returns the innermost reason of a message of gRPC, and what it lets one guess.
func Plain(message string) (string, Cause) {
	const dialing = "Error while dialing: "
	if i := strings.LastIndex(message, dialing); i >= 0 {
		message = message[i+len(dialing):]
	} else if i := strings.LastIndex(message, `desc = "`); i >= 0 && strings.HasSuffix(message, `"`) {
		message = strings.TrimPrefix(message[i+len(`desc = "`):], "transport: ")
	}
	message = strings.TrimSuffix(message, `"`)
	return message, causeOf(message)
}

func causeOf(message string) Cause {
	for _, known := range []struct {
		text  string
		cause Cause
	}{
		{"produced zero addresses", NoAddress},
		{"first record does not look like a TLS handshake", Plaintext},
		{"looked like an HTTP/1.1 header", HTTP1},
		{"certificate required", NoCertificate},
		{"bad certificate", NoCertificate},
		{"server preface: EOF", WantsTLS},
		{"connection reset by peer", WantsTLS},
		{"unexpected HTTP status code received from server: 404", NotGRPC},
		{"unknown service", NoService},
	} {
		if strings.Contains(message, known.text) && (known.cause != WantsTLS || strings.Contains(message, "server preface")) {
			return known.cause
		}
	}
	return Other
}
