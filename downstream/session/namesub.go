package session

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// One client's subscription to a name.

func (s *nameSub) told() told { return told(s.Own[ownTold] &^ (isLostBit | isNotedBit)) }

func (s *nameSub) setTold(t told) {
	s.Own[ownTold] = s.Own[ownTold]&(isLostBit|isNotedBit) | byte(t)
	if t == toldResource {
		s.Own[ownTold] &^= isNotedBit
	}
}

// errTold is a hash of the error that the client was told last, 0 for none.
func (s *nameSub) errTold() uint32 {
	if r := s.rare(); r != nil {
		return r.errTold
	}
	return 0
}

func (s *nameSub) setErrTold(hash uint32) {
	if s.errTold() != hash {
		s.makeRare().errTold = hash
	}
}

// knowsAbsent says that the client was told that the resource does not exist, and why.
// That it could not be looked up again is no other reason.
func (s *nameSub) knowsAbsent(why *cache.Error) bool {
	return s.told() == toldAbsent && (s.errTold() == markError(why) || why != nil && why.Transient())
}

// toldOf notes that the client was told a resource, without an error.
func (s *nameSub) toldOf(st *cache.State) {
	s.setTold(toldResource)
	s.Note = s.of().mark(st.Resource)
	s.setErrTold(0)
	if st.Resource.TTL() > 0 {
		s.setBeats(st.Beats)
	}
	if s.byLocator() {
		s.rare().constraints = st.Resource.Constraints()
	}
}

// beats is a number like that of the heartbeat that the client was told last.
func (s *nameSub) beats() uint32 { return uint32(s.Own[ownBeats]) }

func (s *nameSub) setBeats(n uint32) { s.Own[ownBeats] = byte(n) }

// constraints are of the variant that the client was told, empty for none.
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

// form is how the client is told the resource.
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
	subs.reckon(s)
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

// beating says that a client is yet to be told that a resource lives on, which it
// holds. xDS: "TTL".
func (s *nameSub) beating(st *cache.State) bool {
	return s.of().Form&cache.WithTTL != 0 && st.Resource.TTL() > 0 && s.Own[ownBeats] != byte(st.Beats)
}

// keep has the client keep what it was told. It was told that earlier, so that a time to
// live ends late rather than early.
func (s *nameSub) keep(was *cache.Resource) {
	k := &kept{resource: was, sub: s}
	if was.TTL() > 0 {
		k.stop = s.of().Host.Expire(was, k)
	}
	s.makeRare().keep(k)
}

// keep has k, which may be nil, in the place of what was kept.
func (r *rareSub) keep(k *kept) {
	if r.kept != nil && r.kept.stop != nil {
		r.kept.stop()
	}
	r.kept = k
}

// state is what there is to tell of the name.
func (s *nameSub) state() cache.State {
	st, r := s.stated(), s.rare()
	if r == nil || r.kept == nil {
		return st
	}
	told := s.told()
	switch answered := st.Status == cache.Present || st.Status == cache.Absent; {
	case !answered && !r.kept.over:
		return cache.State{Status: cache.Present, Resource: r.kept.resource, Err: st.Err, Beats: s.beats()}
	case !answered && told != toldAbsent && told != toldFailed:
		return cache.State{Status: cache.Absent, Was: r.kept.resource}
	}
	r.keep(nil)
	return st
}

// Enter implements Subscription.
func (k *kept) Enter() bool {
	was := k.marked
	k.marked = true
	return !was
}

// Leave implements Subscription.
func (k *kept) Leave() { k.marked = false }

// MoveToPending implements Subscription.
func (k *kept) MoveToPending() {
	k.over = true
	k.sub.MoveToPending()
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
		s.setAlias(sub, sub.makeRare(), sub.asks().of(strings.Clone(own)).key())
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
		s.named.get(own) // what aliases stand for is told with them, and not as one of a group
		if s.aliases == nil {
			s.aliases = map[string][]*nameSub{}
		}
		s.aliases[own] = append(s.aliases[own], sub)
	}
}

// reckon counts a name whose control plane cannot be reached and of which nothing is
// held.
func (s *subscriptions) reckon(sub *nameSub) {
	var st cache.State
	switch {
	case !s.CountsLostNames || sub.entry() == nil:
		return
	case sub.is(isRare):
		if st = sub.stated(); sub.rare().kept != nil {
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
