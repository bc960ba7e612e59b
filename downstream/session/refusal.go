package session

import (
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// refusedState is what a client is told of a name that the relay refuses. A refusal says
// nothing about the resource: a client that may hold the resource keeps it, and so do the
// clients of a relay. Such a client is told a code that it does not take for a removal, and a
// relay one that its own clients do not take for an answer either. gRFC A88: NOT_FOUND and
// PERMISSION_DENIED can delete what a client holds.
func (s *nameSub) refusedState(err *cache.Error) cache.State {
	relay := s.of().Relay
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
	subs.Host.Unasked(subs.typeURL, s.name(), err)
}

// refused says that the client was refused a name that it may be given now.
func (s *nameSub) refused() bool {
	r := s.rare()
	return r != nil && r.err != nil && r.err.Code == codes.ResourceExhausted
}
