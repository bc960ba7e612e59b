package downstream

import (
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// Names that the relay refuses. Clients are sent an error, but many (such as gRPC's) report it to nobody: operators
// find the refusals in the metrics and by client. The resolver of the names logs them, with more detail than clients
// get.

// Refusal is why a name is refused.
type Refusal uint8

// The refusals.
const (
	// RefusedOther is for any other reason.
	RefusedOther Refusal = iota
	// RefusedAuthority: the name's authority is not configured.
	RefusedAuthority
	// RefusedRule: no rule for old-style names matches the client's Node.
	RefusedRule
	// RefusedPartition: the rule's partition cannot be evaluated for the client's Node.
	RefusedPartition
	// RefusedName: the name cannot be parsed.
	RefusedName
	// RefusedType: the name is of another type than the request.
	RefusedType
	// RefusedParameter: the name lacks a context parameter that its authority requires.
	RefusedParameter
	// RefusedLimit: the client has too many of something that the name needs.
	RefusedLimit
	// RefusedRight: the client may not have it, by the rules under rights.
	RefusedRight
	// RefusedSecret: the listener gives the client no Secrets.
	RefusedSecret
	numRefusals
)

var refusalNames = [numRefusals]string{
	RefusedOther:     "other",
	RefusedAuthority: "authority",
	RefusedRule:      "rule",
	RefusedPartition: "partition",
	RefusedName:      "name",
	RefusedType:      "type",
	RefusedParameter: "parameter",
	RefusedLimit:     "limit",
	RefusedRight:     "right",
	RefusedSecret:    "secret",
}

// String returns the refusal's name in metrics and logs.
func (r Refusal) String() string { return refusalNames[r] }

// RefusedError is an error of [Names.Key].
type RefusedError struct {
	Refusal Refusal
	// Client is the error that the client is sent.
	Client *cache.Error
	excess *excess // the limit of the stream, if that is why
}

// Error returns the text of the client's error.
func (e *RefusedError) Error() string { return e.Client.Error() }

// Unwrap returns e.Client.
func (e *RefusedError) Unwrap() error { return e.Client }

// refusalCounts are totals.
type refusalCounts [numRefusals]atomic.Uint64

func (c *refusalCounts) read() map[string]uint64 { return readTotals[Refusal](c[:]) }

// RefusedNames are the names of one type that a client was refused.
type RefusedNames struct {
	Total uint64 // how often
	// Last is the last refused name, clipped; Refusal and Reason are why.
	Last    string
	Refusal Refusal
	Reason  string // in words, clipped
}

// maxRefusedName is how much of a name is kept for the operator, in bytes.
const maxRefusedName = 256

// refusal is the error of a name that is refused for a limit of its stream.
func (e *excess) refusal() error {
	return &RefusedError{Refusal: RefusedLimit, Client: &cache.Error{Code: codes.ResourceExhausted, Message: e.Error()}, excess: e}
}
