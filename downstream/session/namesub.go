package session

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/xds-relay/xds-relay/cache"
)

// One client's subscription to a name.

// told is what a client was last told of a name.
type told uint8

const (
	toldNothing told = iota
	toldResource
	toldAbsent
	toldFailed
)

// asked is how a client asks for something: by a name, or by a ResourceLocator,
// which may have dynamic parameters (TP2).
type asked struct {
	name    string
	locator bool
	params  string // as in cache.Scope
}

func byName(name string) asked { return asked{name: name} }

func byLocator(l *discoveryv3.ResourceLocator) asked {
	return asked{name: l.GetName(), locator: true, params: cache.Params(l.GetDynamicParameters()).String()}
}

// key is what the subscription is kept under: the name, and what no name has.
func (a asked) key() string {
	if !a.locator {
		return a.name
	}
	return a.name + "\x00" + a.params
}

// of is how the client would ask for another name in the same way.
func (a asked) of(name string) asked {
	a.name = name
	return a
}

// nameSub is a client's subscription to one name: a watch of its entry, or of nothing
// if the name can mean nothing. There are very many, so that what most of them do not
// need is in a rareSub. Note is a hash of the content that the client was told.
type nameSub cache.Watch

// What a nameSub has in Own.
const (
	ownTold  = iota // what it was last told, and isLost
	ownMarks        // of type mark
	ownInbox        // whether it is in the inbox; guarded by inbox.mu
	// ownBeats is the end of the number of the heartbeat that the client was told last. Who
	// has missed 256 hears of the next one.
	ownBeats
)

// Beside what a client was told, in ownTold.
const (
	// isLostBit says that the subscription is counted in subscriptions.lost.
	isLostBit = 1 << 7
	// isNotedBit says that its refusal for max_request_bytes has been noted.
	isNotedBit = 1 << 6
)

// mark is something that there is to note of a subscription, or not.
type mark byte

const (
	isQueued mark = 1 << iota // in subscriptions.pending
	hasEnded
	// mayHold: the client may hold the resource from an earlier stream, or by a set. It is not
	// needed where told is toldResource.
	mayHold
	// isMissed: it was missing in a full state because nothing was known of it.
	isMissed
	// isCovered: a set's part of the full state has it.
	isCovered
	isRare
	// isWanted: the request that is being taken names it.
	isWanted
	// isWithheld: it is in sotwSession.absent.
	isWithheld
)

func (s *nameSub) watch() *cache.Watch { return (*cache.Watch)(s) }

// entry is what is known of the name, nil if it can mean nothing.
func (s *nameSub) entry() *cache.Entry { return s.watch().Entry() }

// of returns the subscriptions of which it is one.
func (s *nameSub) of() *subscriptions { return s.Audience.Owner.(*subscriptions) }

func (s *nameSub) is(m mark) bool { return s.Own[ownMarks]&byte(m) != 0 }

func (s *nameSub) set(m mark, is bool) {
	if is {
		s.Own[ownMarks] |= byte(m)
	} else {
		s.Own[ownMarks] &^= byte(m)
	}
}

func (s *nameSub) isLost() bool { return s.Own[ownTold]&isLostBit != 0 }

func (s *nameSub) setLost(is bool) {
	s.Own[ownTold] &^= isLostBit
	if is {
		s.Own[ownTold] |= isLostBit
	}
}

func (s *nameSub) told() told { return told(s.Own[ownTold] &^ (isLostBit | isNotedBit)) }

func (s *nameSub) setTold(t told) {
	s.Own[ownTold] = s.Own[ownTold]&(isLostBit|isNotedBit) | byte(t)
	if t == toldResource {
		s.Own[ownTold] &^= isNotedBit
	}
}

// rareSub is what most subscriptions do not have: those of a plain name in the
// spelling of the cache, which has no error.
type rareSub struct {
	asked
	key string       // of asked
	err *cache.Error // why the name can mean nothing
	// errTold is a hash of the error that the client was told last, 0 for none.
	errTold uint32
	// kept is what the client holds from before the name became a redirect, nil if
	// that does not matter any more.
	kept *kept
	// withheld is not for this client: it came later.
	withheld *cache.Resource
	// constraints are of the variant that the client was told.
	constraints string
	// Delta: own is the key of the resource of which the name is an alias, as it is in
	// subscriptions.aliases; toldAs is under which other name the client was told it.
	own, toldAs string
}

// rare returns what is rare about the subscription, nil if nothing is.
func (s *nameSub) rare() *rareSub {
	if !s.is(isRare) {
		return nil
	}
	return s.of().rares[s]
}

// makeRare is rare, and not nil.
func (s *nameSub) makeRare() *rareSub {
	if r := s.rare(); r != nil {
		return r
	}
	return s.rarely(byName(s.entry().Name()))
}

// rarely gives a new subscription what is rare, of which that is how the client asks.
func (s *nameSub) rarely(a asked) *rareSub {
	subs, r := s.of(), &rareSub{asked: a, key: a.key()}
	if subs.rares == nil {
		subs.rares = map[*nameSub]*rareSub{}
	}
	subs.rares[s] = r
	s.set(isRare, true)
	return r
}

// name is the client's spelling.
func (s *nameSub) name() string {
	if r := s.rare(); r != nil {
		return r.name
	}
	return s.entry().Name() // one string for all clients
}

// key is what the subscription is kept under: the client's spelling, and more if it
// asked by a locator.
func (s *nameSub) key() string {
	if r := s.rare(); r != nil {
		return r.key
	}
	return s.entry().Name()
}

// asks is how the client asked for it.
func (s *nameSub) asks() asked {
	if r := s.rare(); r != nil {
		return r.asked
	}
	return byName(s.name())
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
