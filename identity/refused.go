package identity

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reason is why the relay refuses a client because of its identity or missing proof.
type Reason uint8

// The reasons.
const (
	// NotAdmitted: `admit` is false for the client.
	NotAdmitted Reason = iota
	// AdmitFailed: `admit` cannot be evaluated for the client.
	AdmitFailed
	// NoToken: the listener requires a token, and the client has sent none.
	NoToken
	// InvalidToken: the client's token is not valid.
	InvalidToken
	// NoKeys: the relay cannot verify the token, because it has no keys yet.
	NoKeys
	// CertificateExpired: the client's certificate has expired since it connected.
	CertificateExpired
	// TokenExpired: the client's token has expired since its stream began.
	TokenExpired
	// NumReasons is the number of reasons.
	NumReasons
)

var reasons = [NumReasons]struct {
	name string
	code codes.Code
}{
	NotAdmitted:        {"not_admitted", codes.PermissionDenied},
	AdmitFailed:        {"admit_failed", codes.PermissionDenied},
	NoToken:            {"no_token", codes.Unauthenticated},
	InvalidToken:       {"invalid_token", codes.Unauthenticated},
	NoKeys:             {"no_keys", codes.Unavailable},
	CertificateExpired: {"certificate_expired", codes.Unavailable},
	TokenExpired:       {"token_expired", codes.Unavailable},
}

// String returns the reason's name in metrics and logs.
func (r Reason) String() string { return reasons[r].name }

// Ended returns the text for a client whose stream has ended for that reason.
func (r Reason) Ended() string {
	if r == TokenExpired {
		return "the client's token has expired (want a new stream, with a new token)"
	}
	return "the client's certificate has expired, or does so soon (want a new connection, with a new certificate)"
}

// RefusedError is the error for a client that is refused because of its identity.
type RefusedError struct {
	Reason Reason
	// Message is for the client. It contains nothing of a token or of the configuration.
	Message string
	// Detail is for the operator.
	Detail string
}

// Error returns the client's message.
func (e *RefusedError) Error() string { return e.Message }

// GRPCStatus returns the status with which the client's call ends.
func (e *RefusedError) GRPCStatus() *status.Status {
	return status.New(reasons[e.Reason].code, e.Message)
}
