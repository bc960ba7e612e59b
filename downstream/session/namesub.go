package session

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// One client's subscription to a name.

// sentState is what a client was sent last about a name.
type sentState uint8

const (
	sentNothing sentState = iota
	sentResource
	sentAbsent
	sentFailed
)

// The bytes of Own in a nameSub.
const (
	ownSent  = iota // what it was sent last, and the bits below
	ownMarks        // of type mark
	ownInbox        // whether it is in the inbox; guarded by inbox.mu
	// ownHeartbeats is the low byte of the number of the heartbeat that the client was sent last. A client that has
	// missed exactly 256 heartbeats gets the next one.
	ownHeartbeats
)

// Bits of ownSent.
const (
	// isLostBit: the subscription is counted in trouble.lost.
	isLostBit = 1 << 7
	// isNotedBit: the refusal of the name because of max_request_bytes has been recorded.
	isNotedBit = 1 << 6
	// isRejectedBit: the client has rejected what it was sent.
	isRejectedBit = 1 << 5
	// sentInBits hold sentIn, sentBits the sentState.
	sentInBits, sentInShift = 7 << 2, 2
	sentBits                = 1<<sentInShift - 1
)

// mark is a flag of a subscription.
type mark byte

const (
	isQueued mark = 1 << iota // in subscriptions.pending
	hasEnded
	// mayHold: the client may hold the resource from an earlier stream, or from a set. It is not needed if sent is
	// sentResource.
	mayHold
	// isMissed: it was missing in a full state because nothing was known of it.
	isMissed
	// isCovered: a set's part of the full state has it.
	isCovered
	isRare
	// isWanted: the current request names it.
	isWanted
	// isWithheld: it is in SotW.absent.
	isWithheld
)

func (s *nameSub) watch() *cache.Watch { return (*cache.Watch)(s) }

// entry is the name's entry in the cache, nil if the name is refused.
func (s *nameSub) entry() *cache.Entry { return s.watch().Entry() }

// of returns the subscriptions that it belongs to.
func (s *nameSub) of() *subscriptions { return s.Group.Owner.(*subscriptions) }

func (s *nameSub) is(m mark) bool { return s.Own[ownMarks]&byte(m) != 0 }

func (s *nameSub) set(m mark, is bool) {
	if is {
		s.Own[ownMarks] |= byte(m)
	} else {
		s.Own[ownMarks] &^= byte(m)
	}
}

// rare returns the subscription's rareSub, nil if it has none.
func (s *nameSub) rare() *rareSub {
	if !s.is(isRare) {
		return nil
	}
	return s.of().rares[s]
}

// makeRare returns the subscription's rareSub, and makes one if there is none.
func (s *nameSub) makeRare() *rareSub {
	if r := s.rare(); r != nil {
		return r
	}
	return s.newRare(refByName(s.entry().Name()))
}

// newRare gives a new subscription a rareSub. a is how the client requests it.
func (s *nameSub) newRare(a resourceRef) *rareSub {
	subs, r := s.of(), &rareSub{resourceRef: a, key: a.key()}
	put(&subs.rares, s, r)
	s.set(isRare, true)
	return r
}

// key is the key of the subscription: the client's spelling, with the parameters if it requested by a locator.
func (s *nameSub) key() string {
	if r := s.rare(); r != nil {
		return r.key
	}
	return s.entry().Name()
}

// ref is how the client requested it.
func (s *nameSub) ref() resourceRef {
	if r := s.rare(); r != nil {
		return r.resourceRef
	}
	return refByName(s.name())
}

func (s *nameSub) sent() sentState { return sentState(s.Own[ownSent] & sentBits) }

func (s *nameSub) setSent(t sentState) {
	if t == sentResource {
		s.Own[ownSent] = s.Own[ownSent]&(isLostBit|isRejectedBit|sentInBits) | byte(t)
		return
	}
	s.Own[ownSent] = s.Own[ownSent]&(isLostBit|isNotedBit) | byte(t)
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

// wasSentAbsent reports whether the client was sent that the resource does not exist, for that reason. A failed new
// lookup is not another reason.
func (s *nameSub) wasSentAbsent(why *cache.Error) bool {
	return s.sent() == sentAbsent && (s.sentErr() == markError(why) || why != nil && why.Transient())
}

// setSentResource records that the client was sent a resource, without an error.
func (s *nameSub) setSentResource(st *cache.State) {
	mark := s.of().mark(st.Resource)
	if s.sent() != sentResource || s.Note != mark || s.renewed(st) {
		s.setSentIn(s.of().sending())
	}
	s.setSent(sentResource)
	s.Note = mark
	s.setSentErr(0)
	if st.Resource.TTL() > 0 {
		s.setHeartbeats(st.Heartbeats)
	}
	if s.byLocator() {
		s.rare().constraints = st.Resource.Constraints()
	}
}

// heartbeats is the low byte of the number of the heartbeat that the client was sent last.
func (s *nameSub) heartbeats() uint32 { return uint32(s.Own[ownHeartbeats]) }

func (s *nameSub) setHeartbeats(n uint32) { s.Own[ownHeartbeats] = byte(n) }

// constraints are those of the variant that the client was sent, empty for none.
func (s *nameSub) constraints() string {
	if r := s.rare(); r != nil {
		return r.constraints
	}
	return ""
}

// byLocator reports that the client requested by a ResourceLocator.
func (s *nameSub) byLocator() bool {
	r := s.rare()
	return r != nil && r.locator
}

// form is the form in which the client is sent the resource.
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

// authorityState is the authority's state of the name.
func (s *nameSub) authorityState() cache.State {
	rare, entry := s.rare(), s.entry()
	if entry == nil && rare.gone {
		return cache.State{Status: cache.Absent, Err: &cache.Error{Code: codes.NotFound, Message: rare.err.Message}}
	}
	if entry == nil {
		return s.refusedState(rare.err)
	}
	if rare != nil && rare.waits && s.waitsForSource() {
		return cache.State{Status: cache.Requested}
	}
	st := entry.State()
	if st.Status == cache.Failed && st.Err.Refused {
		s.noteNotRequested(st.Err)
		return s.refusedState(st.Err)
	}
	if r := st.Resource; r != nil && r.Redirect() != "" && s.redirected() {
		return cache.State{Status: cache.Requested} // until the subscription has moved
	}
	if s.of().Rights != nil {
		if why := s.ownDenial(st.Resource); why != nil {
			return s.refusedState(why)
		}
		if s.ownRight(st.Previous) != nil {
			st.Previous = nil
		}
		rare = s.rare()
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

// waitsForSource reports that the name has moved to a topic whose source was replaced at the same time and has not
// answered. The client keeps what it has.
func (s *nameSub) waitsForSource() bool {
	rare := s.rare()
	if rare == nil || !rare.waits {
		return false
	}
	rare.waits = s.entry().Outdated()
	return rare.waits
}

// redirected reports that a name is a redirect that the relay follows.
func (s *nameSub) redirected() bool {
	entry := s.entry()
	return entry != nil && !s.of().Passes && entry.Redirected()
}

// refusedState is the state of a refused name for the client. A refusal says nothing about the resource: a client that
// may hold the resource keeps it, and so do the clients of a relay. Such a client is sent a code that it does not take
// for a removal. A relay is sent a code that its own clients do not take for an answer either. gRFC A88: NOT_FOUND and
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

// noteNotRequested records, once until the client is sent the resource, that a name is not requested because a request
// to the control plane has no room for it.
func (s *nameSub) noteNotRequested(err *cache.Error) {
	if s.Own[ownSent]&isNotedBit != 0 {
		return
	}
	s.Own[ownSent] |= isNotedBit
	subs := s.of()
	subs.Host.NotRequested(subs.typeURL, s.name(), err)
}

// refused reports that the client was refused a name that may be possible now.
func (s *nameSub) refused() bool {
	r := s.rare()
	return r != nil && r.err != nil && r.err.Code == codes.ResourceExhausted
}

// noteAlias updates subscriptions.aliases for what a name stands for now.
func (s *subscriptions) noteAlias(sub *nameSub) {
	entry := sub.entry()
	if s.sotw || entry == nil {
		return
	}
	own := entry.AliasOf()
	if own != "" && sub.denial() != nil {
		own = ""
	}
	switch r := sub.rare(); {
	case own != "":
		s.setAlias(sub, sub.makeRare(), sub.ref().of(strings.Clone(own)).key())
	case r != nil:
		s.setAlias(sub, r, "")
	}
}

// setAlias records that a name is an alias of the resource with a key, or of nothing.
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
		s.named.get(own) // what aliases stand for is sent with them, and not as part of a group
		put(&s.aliases, own, append(s.aliases[own], sub))
	}
}

// countIfLost counts a name whose control plane is unreachable and of which nothing is held.
func (s *subscriptions) countIfLost(sub *nameSub) {
	var st cache.State
	switch {
	case !s.CountsLostNames || sub.entry() == nil:
		return
	case sub.is(isRare):
		if st = sub.authorityState(); sub.rare().beforeRedirect != nil {
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

// takePending calls f for each name of which there may be something to send, until f returns false: then that name and
// the remaining ones stay pending.
func (s *subscriptions) takePending(f func(*nameSub) bool) {
	for i, sub := range s.pending {
		if sub.is(hasEnded) {
			continue
		}
		if !f(sub) {
			left := copy(s.pending, s.pending[i:])
			clear(s.pending[left:])
			s.pending = s.pending[:left]
			return
		}
		sub.set(isQueued, false)
	}
	if n := cap(s.pending); n > minCompact && n <= mostPending {
		clear(s.pending)
		pending := s.pending[:0] // declared here, because it is allocated on the heap
		s.Host.PendingLists().Put(&pending)
	}
	s.pending = nil
}

func (s *subscriptions) countLost(sub *nameSub, lost bool) {
	switch {
	case lost == sub.isLost():
		return
	case lost:
		s.troubled().lost++
	default:
		s.trouble.lost--
	}
	sub.setLost(lost)
}

// sending is the number of the response that is being put together.
func (s *subscriptions) sending() number { return s.newest + 1 }

// name is the name in the client's spelling.
func (s *nameSub) name() string {
	if r := s.rare(); r != nil {
		return r.name
	}
	return s.entry().Name() // one string for all clients
}

// sentAs is the name under which the client was sent the resource.
func (s *nameSub) sentAs() string {
	if r := s.rare(); r != nil && r.sentAs != "" {
		return r.sentAs
	}
	return s.name()
}

// state is the state of the name to send to the client.
func (s *nameSub) state() cache.State {
	st, r := s.authorityState(), s.rare()
	if r == nil || r.beforeRedirect == nil {
		return st
	}
	sent := s.sent()
	switch answered := st.Status == cache.Present || st.Status == cache.Absent; {
	case sent == sentAbsent: // the client no longer holds that
	case !answered && !r.beforeRedirect.expired:
		return cache.State{Status: cache.Present, Resource: r.beforeRedirect.resource, Err: st.Err, Heartbeats: s.heartbeats()}
	case !answered && sent != sentFailed:
		return cache.State{Status: cache.Absent, Previous: r.beforeRedirect.resource}
	case st.Status == cache.Absent && sent == sentResource: // the client holds the resource until it is sent the absence
		st.Previous = r.beforeRedirect.resource
		return st
	}
	r.setBefore(nil)
	return st
}

// memberKey is the canonical form of the name. An entry's key may differ, because it may have fewer parameters.
func (s *nameSub) memberKey() string {
	if s.rare() != nil {
		return memberKey(s.name())
	}
	return s.entry().Name()
}

func (s *nameSub) isLost() bool { return s.Own[ownSent]&isLostBit != 0 }

func (s *nameSub) setLost(is bool) {
	s.Own[ownSent] &^= isLostBit
	if is {
		s.Own[ownSent] |= isLostBit
	}
}

// setSentIn records the response in which a resource that is new to the client goes.
func (s *nameSub) setSentIn(n number) {
	s.Own[ownSent] = s.Own[ownSent]&^(sentInBits|isRejectedBit) | n.short()<<sentInShift
}

// sentIn is the short number of the response in which the client was sent what it has; 0 if not known. An earlier
// response may have the same short number.
func (s *nameSub) sentIn() byte { return s.Own[ownSent] & sentInBits >> sentInShift }

// setBefore replaces the value before the redirect by k, which may be nil.
func (r *rareSub) setBefore(k *valueBeforeRedirect) {
	if r.beforeRedirect != nil && r.beforeRedirect.stop != nil {
		r.beforeRedirect.stop()
	}
	r.beforeRedirect = k
}
