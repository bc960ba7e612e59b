package session

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// One client's subscription to a name.

func (s *nameSub) sent() sentState { return sentState(s.Own[ownSent] &^ (isLostBit | isNotedBit)) }

func (s *nameSub) setSent(t sentState) {
	s.Own[ownSent] = s.Own[ownSent]&(isLostBit|isNotedBit) | byte(t)
	if t == sentResource {
		s.Own[ownSent] &^= isNotedBit
	}
}

// sentErr is a hash of the error that the client was sent last, 0 for none.
func (s *nameSub) sentErr() uint32 {
	if r := s.rare(); r != nil {
		return r.sentErr
	}
	return 0
}

func (s *nameSub) setSentErr(hash uint32) {
	if s.sentErr() != hash {
		s.makeRare().sentErr = hash
	}
}

// wasSentAbsent says that the client was sent that the resource does not exist, and why.
// That it could not be looked up again is no other reason.
func (s *nameSub) wasSentAbsent(why *cache.Error) bool {
	return s.sent() == sentAbsent && (s.sentErr() == markError(why) || why != nil && why.Transient())
}

// setSentResource notes that the client was sent a resource, without an error.
func (s *nameSub) setSentResource(st *cache.State) {
	s.setSent(sentResource)
	s.Note = s.of().mark(st.Resource)
	s.setSentErr(0)
	if st.Resource.TTL() > 0 {
		s.setHeartbeats(st.Heartbeats)
	}
	if s.byLocator() {
		s.rare().constraints = st.Resource.Constraints()
	}
}

// heartbeats is a number like that of the heartbeat that the client was sent last.
func (s *nameSub) heartbeats() uint32 { return uint32(s.Own[ownHeartbeats]) }

func (s *nameSub) setHeartbeats(n uint32) { s.Own[ownHeartbeats] = byte(n) }

// constraints are of the variant that the client was sent, empty for none.
func (s *nameSub) constraints() string {
	if r := s.rare(); r != nil {
		return r.constraints
	}
	return ""
}

// byLocator says that the client asked by a ResourceLocator.
func (s *nameSub) byLocator() bool {
	r := s.rare()
	return r != nil && r.locator
}

// form is how the client is sent the resource.
func (s *nameSub) form() cache.Form {
	if s.byLocator() {
		return s.of().Form | cache.ByLocator
	}
	return s.of().Form
}

func (s *nameSub) Enter() bool {
	was := s.Own[ownInbox]
	s.Own[ownInbox] = 1
	return was == 0
}

func (s *nameSub) Leave() { s.Own[ownInbox] = 0 }

func (s *nameSub) MoveToPending() {
	if s.is(hasEnded) {
		return
	}
	subs := s.of()
	if s.redirected() {
		subs.moving = append(subs.moving, s)
	}
	subs.noteAlias(s)
	if !s.is(isQueued) {
		s.set(isQueued, true)
		subs.pending = append(subs.pending, s)
	}
	subs.countIfLost(s)
}

// stated is what the authority says of the name.
func (s *nameSub) stated() cache.State {
	rare, entry := s.rare(), s.entry()
	if entry == nil {
		return s.refusedState(rare.err)
	}
	st := entry.State()
	if st.Status == cache.Failed && st.Err.Refused {
		s.noteUnasked(st.Err)
		return s.refusedState(st.Err)
	}
	if r := st.Resource; r != nil && r.Redirect() != "" && s.redirected() {
		return cache.State{Status: cache.Requested} // until it has moved
	}
	if rare == nil || rare.withheld == nil {
		return st
	}
	switch {
	case st.Resource != rare.withheld:
		rare.withheld = nil
		return st
	case st.Err != nil:
		return cache.State{Status: cache.Failed, Err: st.Err}
	}
	return cache.State{Status: cache.Requested}
}

// redirected says that a name is a redirect that is to be followed.
func (s *nameSub) redirected() bool {
	entry := s.entry()
	return entry != nil && !s.of().Passes && entry.Redirected()
}

// refusedState is what a client is sent of a name that the relay refuses. A refusal says
// nothing about the resource: a client that may hold the resource keeps it, and so do the
// clients of a relay. Such a client is sent a code that it does not take for a removal, and a
// relay one that its own clients do not take for an answer either. gRFC A88: NOT_FOUND and
// PERMISSION_DENIED can delete what a client holds.
func (s *nameSub) refusedState(err *cache.Error) cache.State {
	relay := s.of().Relay
	if !relay && !s.is(mayHold) && s.sent() != sentResource {
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
	if s.Own[ownSent]&isNotedBit != 0 {
		return
	}
	s.Own[ownSent] |= isNotedBit
	subs := s.of()
	subs.Host.Unasked(subs.typeURL, s.name(), err)
}

// refused says that the client was refused a name that it may be given now.
func (s *nameSub) refused() bool {
	r := s.rare()
	return r != nil && r.err != nil && r.err.Code == codes.ResourceExhausted
}

// noteAlias brings subscriptions.aliases in line with what a name stands for.
func (s *subscriptions) noteAlias(sub *nameSub) {
	entry := sub.entry()
	if s.sotw || entry == nil {
		return
	}
	own := entry.AliasOf()
	switch r := sub.rare(); {
	case own != "":
		s.setAlias(sub, sub.makeRare(), sub.ref().of(strings.Clone(own)).key())
	case r != nil:
		s.setAlias(sub, r, "")
	}
}

// setAlias notes that a name is an alias of what is kept under a key, or of nothing.
func (s *subscriptions) setAlias(sub *nameSub, r *rareSub, own string) {
	if r.own == own {
		return
	}
	if r.own != "" {
		s.aliases[r.own] = slices.DeleteFunc(s.aliases[r.own], func(o *nameSub) bool { return o == sub })
		if len(s.aliases[r.own]) == 0 {
			delete(s.aliases, r.own)
		}
	}
	if r.own = own; own != "" {
		s.named.get(own) // what aliases stand for is sent with them, and not as one of a group
		put(&s.aliases, own, append(s.aliases[own], sub))
	}
}

// countIfLost counts a name whose control plane cannot be reached and of which nothing is
// held.
func (s *subscriptions) countIfLost(sub *nameSub) {
	var st cache.State
	switch {
	case !s.CountsLostNames || sub.entry() == nil:
		return
	case sub.is(isRare):
		if st = sub.stated(); sub.rare().beforeRedirect != nil {
			st.Status = cache.Present
		}
	default:
		st = sub.entry().State()
	}
	s.countLost(sub, st.Unreachable())
	if sub.isLost() {
		s.trouble.lostFor = st.Err
	}
}
