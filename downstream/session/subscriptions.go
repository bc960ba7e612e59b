package session

import (
	"errors"
	"iter"
	"slices"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// subscriptions are what one client has subscribed to of one type: what both
// forms have in common.
type subscriptions struct {
	*Client
	typeURL string

	named nameTable
	setIndex
	// audience is that of all of them; nil before the first.
	audience *cache.Audience
	// rares have what is rare about those of them that are marked so.
	rares map[*nameSub]*rareSub
	// aliases are the names by which it asks for a resource that has another, by the key
	// under which it would ask for that. Delta.
	aliases map[string][]*nameSub
	// params are those of the locators, and how many subscriptions have them.
	params map[string]int
	// freshSets counts the sets that have not been answered yet.
	freshSets int
	// pending are the names of which there may be something to tell, pendingSets the
	// sets.
	pending     []*nameSub
	pendingSets []*setSub
	// moving have come upon redirects. leave, if not nil, is called for a set that
	// moves, before it does.
	moving []follower
	moves  int // how many have moved
	leave  func(*setSub)
	// took, if not nil, is called for a name that is taken out of a group, if the client was
	// told a resource: see membership.
	took func(*nameSub)
	sotw bool
	// offered is the list of names in the request that is being taken, if it is one that
	// others have sent.
	offered NameList
	// slab has the next subscriptions to names, of which many begin at once.
	slab []nameSub
	// rejection is the last NACK's words.
	rejection string
	// trouble is nil as long as nothing was ever refused or lost, as with most clients.
	trouble *trouble
}

func newSubscriptions(typeURL string, c *Client) subscriptions {
	return subscriptions{Client: c, typeURL: typeURL}
}

// Offer implements the stream's typeSession.
func (s *subscriptions) Offer(list NameList) { s.offered = list }

// TypeURL implements the stream's typeSession.
func (s *subscriptions) TypeURL() string { return s.typeURL }

// lookUp returns the key of what a client asks for.
func (s *subscriptions) lookUp(a asked) (cache.Key, error) {
	key, err := s.Host.Key(s.typeURL, a.name)
	key.Scope.Params = a.params
	if s.Passes && key.Scope.Derived == cache.Resolved {
		key.Scope.Derived = cache.Passed
	}
	return key, err
}

// subscribe begins a subscription to a name or to a glob, or begins it anew: the
// client may have forgotten what it was told. It returns one or the other.
func (s *subscriptions) subscribe(a asked) (*nameSub, *setSub) {
	if set := s.globs[a.key()]; set != nil {
		set.again()
		return nil, set
	}
	if sub := s.named.get(a.key()); sub != nil && sub.refused() {
		s.unsubscribe(a.key()) // it may be given now
	} else if sub != nil {
		sub.setTold(toldNothing)
		sub.setErrTold(0)
		sub.MoveToPending()
		return sub, nil
	}
	key, err := s.lookUp(a)
	if err == nil {
		err = s.Host.Admits(key)
	}
	var glob asked
	if err == nil && key.IsSet() {
		if glob = a.of(globAsked(a.name)); s.byGlob[glob.key()] != nil {
			return nil, s.subscribeGlob(a, glob, key)
		}
	}
	if err == nil {
		err = s.Host.Enter(key)
	}
	if err == nil && key.IsSet() {
		return nil, s.subscribeGlob(a, glob, key)
	}
	return s.subscribeName(a, key, err), nil
}

// resume has the control plane asked for what a client holds by a name from an earlier
// stream, if nothing is known of it.
func (s *subscriptions) resume(sub *nameSub) {
	if entry := sub.entry(); entry != nil {
		s.Topics.Resume(entry)
	}
}

func (s *subscriptions) subscribeName(a asked, key cache.Key, err error) *nameSub {
	sub := s.newSub()
	if a.locator || err != nil || key.Name != a.name {
		sub.rarely(a)
	}
	s.countParams(a, 1)
	if err != nil {
		sub.rare().err = asError(err)
		s.Host.Refused(s.typeURL, a.name, err)
		s.troubled().refused++
	} else if _, withheld := s.Topics.Join(key, sub.watch()); withheld != nil {
		sub.makeRare().withheld = withheld
	}
	s.named.add(sub)
	sub.MoveToPending()
	return sub
}

// expect prepares for so many new subscriptions to names.
func (s *subscriptions) expect(n int) {
	const few, many = 4, 1 << 10 // beyond which the client may go over a limit
	if n <= few {
		return
	}
	n = min(n, many)
	s.named.expect(n)
	if s.pending == nil {
		s.pending = *s.Host.PendingLists().Get().(*[]*nameSub)
	}
	s.slab = make([]nameSub, n)
}

func (s *subscriptions) newSub() *nameSub {
	if s.audience == nil {
		s.audience = &cache.Audience{Owner: s, NoBeats: s.Form&cache.WithTTL == 0, Changed: func(w *cache.Watch) cache.Waker { return s.Host.Mark((*nameSub)(w)) }}
	}
	if len(s.slab) == 0 {
		return &nameSub{Audience: s.audience}
	}
	sub := &s.slab[0]
	sub.Audience, s.slab = s.audience, s.slab[1:]
	return sub
}

// countParams counts the subscriptions with the same dynamic parameters.
func (s *subscriptions) countParams(a asked, n int) {
	if !a.locator {
		return
	}
	if s.params == nil {
		s.params = map[string]int{}
	}
	if s.params[a.params] += n; s.params[a.params] == 0 {
		delete(s.params, a.params)
	}
}

// Parameters are the dynamic parameters of its locators.
func (s *subscriptions) Parameters() map[string]int { return s.params }

// subsOf yields the subscriptions to a name, of which locators can make several.
func (s *subscriptions) subsOf(name string) iter.Seq[*nameSub] {
	return func(yield func(*nameSub) bool) {
		if sub := s.named.get(name); sub != nil && !yield(sub) {
			return
		}
		for params := range s.params {
			if sub := s.named.get(asked{name, true, params}.key()); sub != nil && !yield(sub) {
				return
			}
		}
	}
}

// unsubscribe ends a subscription to a name, and says whether there was one.
func (s *subscriptions) unsubscribe(key string) bool {
	sub := s.named.get(key)
	if sub == nil {
		return false
	}
	s.unsubscribeName(sub)
	return true
}

// unsubscribeName ends a subscription to a name.
func (s *subscriptions) unsubscribeName(sub *nameSub) {
	s.named.remove(sub)
	s.countParams(sub.asks(), -1)
	s.end(sub)
	if len(s.pending) > 2*s.named.len()+minCompact {
		s.pending = slices.DeleteFunc(s.pending, func(sub *nameSub) bool { return sub.is(hasEnded) })
	}
}

// minCompact is how many subscriptions that have ended may be left in pending
// without looking for them.
const minCompact = 64

func (s *subscriptions) end(sub *nameSub) {
	if sub.entry() != nil {
		s.Host.Leave(sub.entry().Key())
		s.Topics.Unwatch(sub.watch())
	} else {
		s.trouble.refused--
	}
	s.countLost(sub, false)
	if r := sub.rare(); r != nil {
		s.setAlias(sub, r, "")
		r.keep(nil)
		delete(s.rares, sub)
		sub.set(isRare, false)
	}
	sub.set(hasEnded, true)
}

// Subscribed is the number of names and globs that the client has subscribed to.
func (s *subscriptions) Subscribed() int { return s.named.len() + len(s.globs) }

// Close ends all subscriptions.
func (s *subscriptions) Close() {
	if m := s.named.shared; m != nil {
		m.leave()
	}
	for sub := range s.named.own() {
		s.end(sub)
	}
	for set := range s.sets() {
		s.endSet(set)
	}
	s.wild, s.byGlob = nil, nil
}

// takePending calls f for each name of which there may be something to tell,
// until f returns false: then that name, and the rest, stay pending.
func (s *subscriptions) takePending(f func(*nameSub) bool) {
	for i, sub := range s.pending {
		if sub.is(hasEnded) {
			continue
		}
		if !f(sub) {
			s.pending = append(s.pending[:0], s.pending[i:]...)
			return
		}
		sub.set(isQueued, false)
	}
	if n := cap(s.pending); n > minCompact && n <= mostPending {
		clear(s.pending)
		pending := s.pending[:0] // here, as it is on the heap
		s.Host.PendingLists().Put(&pending)
	}
	s.pending = nil
}

// mostPending is what a list that is used again may have room for at most.
const mostPending = 1 << 12

// NewPendingList is what a pool of pending lists makes: each client has one while it begins.
func NewPendingList() any { return new([]*nameSub) }

// mark stands for what a client is told of a resource: if it is the same again,
// the client is not told.
func (s *subscriptions) mark(r *cache.Resource) uint64 {
	const withTTL = 0x9e3779b97f4a7c15
	if s.Form&cache.WithTTL != 0 && r.TTL() > 0 {
		return r.Hash() ^ withTTL
	}
	return r.Hash()
}

// beating says that a client is yet to be told that a resource lives on, which it
// holds. xDS: "TTL".
func (s *nameSub) beating(st *cache.State) bool {
	return s.of().Form&cache.WithTTL != 0 && st.Resource.TTL() > 0 && s.Own[ownBeats] != byte(st.Beats)
}

// markError is errTold of an error.
func markError(err *cache.Error) uint32 {
	if err == nil {
		return 0
	}
	return uint32(xxhash.Sum64String(err.Error())) | 1
}

// asError puts a name's error in the form in which clients are told.
func asError(err error) *cache.Error {
	var e *cache.Error
	if errors.As(err, &e) {
		return e
	}
	return &cache.Error{Code: codes.NotFound, Message: err.Error()}
}
