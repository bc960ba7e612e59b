package session

import (
	"google.golang.org/grpc/codes"
)

// sentResponse is what a session remembers of a response.
type sentResponse struct {
	nonce    string
	version  string // SotW
	names    NameSample
	at       uint32 // Response.At
	rejected bool
}

// NACK is a client's rejection of a response, in its own words.
// xDS: "ACK and NACK".
type NACK struct {
	TypeURL string
	Nonce   string
	Names   NameSample
	Code    codes.Code
	Reason  string
}
