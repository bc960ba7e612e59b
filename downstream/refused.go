package downstream

import (
	"errors"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
)

// Names that mean nothing to a client. Clients are told of them, but many (gRPC's) do not
// say so to anybody: the operator finds them in the metrics and by client. Who gives names
// their meaning logs them, and knows more of why than clients are told.

// Refusal is why a name can mean nothing.
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
	// RefusedLimit: the client has too many of what it takes.
	RefusedLimit
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
}

// String returns the refusal's name in metrics and logs.
func (r Refusal) String() string { return refusalNames[r] }

// RefusedError is an error of [Names.Key].
type RefusedError struct {
	Refusal Refusal
	// Client is what the client is told.
	Client *cache.Error
}

// Error returns what the client is told.
func (e *RefusedError) Error() string { return e.Client.Error() }

// Unwrap returns e.Client.
func (e *RefusedError) Unwrap() error { return e.Client }

// refusalCounts are totals.
type refusalCounts [numRefusals]atomic.Uint64

func (c *refusalCounts) read() map[string]uint64 {
	counts := make(map[string]uint64, numRefusals)
	for r := range numRefusals {
		counts[r.String()] = c[r].Load()
	}
	return counts
}

// RefusedNames are the names of one type that a client was refused.
type RefusedNames struct {
	Total uint64 // how often
	// Last is the last one, clipped, with why.
	Last    string
	Refusal Refusal
	Reason  string // in words, clipped
}

// maxRefusedName is how much of a name is kept for the operator, in bytes.
const maxRefusedName = 256

// refusing is told of names that a client is refused: its stream.
type refusing interface {
	// refuseName is told of each that is refused for a limit of the client's listener.
	refuseName(*excess)
	// refuseUnasked is told of each that is refused because a request to the control plane
	// has no room for it.
	refuseUnasked(*cache.Error)
	// countRefusal is told of each.
	countRefusal(Refusal)
}

// refusedState is what a client is told of a name that the relay refuses. A refusal says
// nothing about the resource: a client that may hold the resource keeps it, and so do the
// clients of a relay. Such a client is told a code that it does not take for a removal, and a
// relay one that its own clients do not take for an answer either. gRFC A88: NOT_FOUND and
// PERMISSION_DENIED can delete what a client holds.
func (s *nameSub) refusedState(err *cache.Error) cache.State {
	relay := s.of().relay
	if !relay && !s.is(mayHold) && s.told() != toldResource {
		status := cache.Failed
		if err.Code == codes.NotFound {
			status = cache.Absent
		}
		if err.Refused {
			err = &cache.Error{Code: err.Code, Message: err.Message}
		}
		return cache.State{Status: status, Err: err}
	}
	code := err.Code
	if relay || code == codes.NotFound || code == codes.PermissionDenied {
		code = codes.Unavailable
	}
	return cache.State{Status: cache.Failed, Err: &cache.Error{Code: code, Message: err.Message, Refused: true}}
}

// noteUnasked notes, once until the client is sent the resource, that a name is not asked for
// because a request to the control plane has no room for it.
func (s *nameSub) noteUnasked(err *cache.Error) {
	if s.Own[ownTold]&isNotedBit != 0 {
		return
	}
	s.Own[ownTold] |= isNotedBit
	subs := s.of()
	subs.noteRefused(s.name(), &RefusedError{Refusal: RefusedLimit, Client: err})
	if subs.onRefusal != nil {
		subs.onRefusal.refuseUnasked(err)
	}
}

// countRefusal implements refusing.
func (st *stream) countRefusal(r Refusal) { st.server.stats.refusals[r].Add(1) }

// trouble is what most clients do not have: names of one type that mean nothing, and
// names and sets of which nothing is held and whose control planes cannot be reached.
type trouble struct {
	refused, lost int // how many of each are subscribed to
	lostFor       *cache.Error
	names         RefusedNames
}

func (s *subscriptions) troubled() *trouble {
	if s.trouble == nil {
		s.trouble = new(trouble)
	}
	return s.trouble
}

// noteRefused notes that a name is refused.
func (s *subscriptions) noteRefused(name string, err error) {
	as := &RefusedError{Client: asError(err)}
	_ = errors.As(err, &as)
	t := s.troubled()
	t.names = RefusedNames{
		Total: t.names.Total + 1,
		Last:  loglines.ClipTo(name, maxRefusedName), Refusal: as.Refusal, Reason: loglines.ClipTo(as.Client.Message, 2*maxRefusedName),
	}
	if s.onRefusal != nil {
		s.onRefusal.countRefusal(as.Refusal)
	}
}
