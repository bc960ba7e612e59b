package session

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/hashtable"
	"github.com/xds-relay/xds-relay/internal/propagation"
)

// subscriptions are one client's subscriptions of one type: the common part of both forms.
type subscriptions struct {
	*Client
	typeURL string

	named nameTable
	setIndex
	// audience is the watch group of all of them; nil before the first.
	audience *cache.WatchGroup
	// rares has the rareSub of each subscription that is marked with isRare.
	rares map[*nameSub]*rareSub
	// aliases are the names by which the client requests a resource that has another name, by the key of a subscription
	// to that other name. Delta.
	aliases map[string][]*nameSub
	// params are the dynamic parameters of the locators, and how many subscriptions have them.
	params map[string]int
	// freshSets counts the sets that have not been answered yet.
	freshSets int32
	// nameBytes is the length of the names in named that are not shared, and of the globs. It may overflow.
	nameBytes uint32
	// pending are the names of which there may be something to send, pendingSets the sets.
	pending     []*nameSub
	pendingSets []*setSub
	// moving are subscriptions that have met redirects.
	moving []follower
	moves  int // how many have moved
	form   sessionForm
	// offered is the list of names in the current request, if other clients have sent it, too.
	offered NameList
	// owed are the changes that the client has to be sent, except those of names that it watches in a group.
	owed propagation.Owed
	// slab has room for the next subscriptions to names, because many begin at once.
	slab []nameSub
	// nacks is nil as long as the client has rejected nothing.
	nacks *nacks
	// newest is the number of the newest response, settled the number of the newest response that the client has
	// answered.
	newest, settled number
	nBegun          uint16 // subscriptions to names that have begun; it may overflow
	sotw            bool   // form is that of SotW
	// Form is that of the client, for this type.
	Form cache.Form
	// sides is nil as long as no group watches something on the new side of a rollout for the client.
	sides *includedSides
	// trouble is nil as long as nothing was ever refused or lost, which is so for most clients.
	trouble *trouble
}

// nameSub is a client's subscription to one name: a watch of its entry, or of nothing if the name is refused. There are
// very many, so what most of them do not need is in a rareSub. Note is a hash of the content that the client was sent.
type nameSub cache.Watch

// rareSub is what most subscriptions do not need: those of a plain name in the spelling of the cache, without an error.
type rareSub struct {
	resourceRef
	key string       // of the resourceRef
	err *cache.Error // why the name is refused
	// gone: the resource was known not to exist when the name was refused.
	gone bool
	// orphan: the client has lost what refers to the resource, see LetGo.
	orphan bool
	// sentErr is a hash of the error that the client was sent last, 0 for none.
	sentErr uint32
	// beforeRedirect is what the client holds from before the name became a redirect, nil if that no longer matters.
	beforeRedirect *valueBeforeRedirect
	// withheld is a resource that the client must not receive, because the client subscribed after it came
	// (Resource.DoNotCache).
	withheld *cache.Resource
	// deniedFor is the hash of the resource whose own name the client may not have, 0 for none.
	deniedFor uint64
	// constraints are those of the variant that the client was sent.
	constraints string
	// Delta: own is the key of the resource that the name is an alias of, as in subscriptions.aliases. sentAs is the
	// other name under which the client was sent it.
	own, sentAs string
	// refused is the version that the client has refused: see nameSub.renewed.
	refused cache.Refused
	// waits: the topic was outdated when the name moved there (cache.Cache.Outdate).
	waits bool
	// members are what the client holds of a glob that was refused later, as in setSub.initial.
	members map[string]string
}

// sessionForm is the session around subscriptions, in its form of the protocol.
type sessionForm interface {
	// beforeMove is called for a set before it moves.
	beforeMove(*setSub)
	// takenOut is called for a name that is taken out of a group, if the client was sent a resource: see membership.
	takenOut(*nameSub)
}

func newSubscriptions(typeURL string, c *Client) subscriptions {
	return subscriptions{Client: c, typeURL: typeURL, Form: c.Form}
}

// Offer sets the list of names that the next request has, if several clients have sent it.
func (s *subscriptions) Offer(list NameList) { s.offered = list }

// TypeURL is the session's type.
func (s *subscriptions) TypeURL() string { return s.typeURL }

// Parameters are the dynamic parameters of its locators.
func (s *subscriptions) Parameters() map[string]int { return s.params }

// minCompact is how many ended subscriptions may stay in pending before they are searched for.
const minCompact = 64

// mostPending is the largest capacity of a list that is reused.
const mostPending = 1 << 12

// NewPendingList makes an element of [Host].PendingLists. Each client uses one while it starts.
func NewPendingList() any { return new([]*nameSub) }

// mark identifies what a client is sent of a resource: what has the same mark is not sent again.
func (s *subscriptions) mark(r *cache.Resource) uint64 {
	const withTTL = 0x9e3779b97f4a7c15
	if r.SentWithTTL(s.Form) {
		return r.Hash() ^ withTTL
	}
	return r.Hash()
}

// markError returns the rareSub.sentErr of an error.
func markError(err *cache.Error) uint32 {
	if err == nil {
		return 0
	}
	return uint32(xxhash.Sum64String(err.Error())) | 1
}

// setSub is a client's subscription to a wildcard or a glob collection.
type setSub struct {
	cache.SetWatch
	subs *subscriptions
	set  *members     // nil if the set is refused
	err  *cache.Error // why it is refused
	// ref is how the client requests it. The name is Wildcard, or the canonical name of a glob without directives.
	// spelled has the client's spellings of that glob.
	ref     resourceRef
	spelled spellings
	fresh   bool // not answered yet; see setFresh
	begun   bool // the client was not sent yet that the first answer is complete; see markComplete
	errSent bool
	queued  bool // in subscriptions.pendingSets
	ended   bool
	inInbox bool // guarded by inbox.mu
	// lost: nothing is held of it, and its control plane is unreachable.
	lost bool

	moved bool // it has moved since it was sent
	// waits: the set was outdated when the subscription moved to it (cache.Cache.Outdate). The client keeps what it has
	// until it is not.
	waits bool
	// spans are the changes that went in the newest responses.
	spans []span

	// SotW: sent: it was in a full state. mayHold: the client may hold it from an earlier stream.
	sent, mayHold bool

	// Delta: initial has the versions of its members that the client holds, for what it has not been sent yet.
	// sentByName are the members that the client was sent under their names while the glob was not answered. reviews
	// are the names to review, by their keys. lacks: the set was answered while a part of it was unavailable, so what
	// the client holds and the set lacks was not removed. stale: the set is from before the relay was started. heldBack
	// are its members of which the client has another version: the client keeps that until a control plane has
	// answered; and new members that may take the place of one that the client holds. unclear: it is not known of all
	// that the client holds whether it is gone.
	lacks      bool
	stale      bool
	unclear    bool
	heldBack   map[string]struct{}
	initial    map[string]string
	sentByName map[*nameSub]bool
	reviews    map[string]review
}

// members are a set as a client knows it.
type members struct {
	*cache.Set
	// glob is the set's canonical name without directives. as is the glob by which the client has the members named;
	// empty if they have their own names.
	glob, as string
}

// glob reports that it is a glob collection.
func (s *setSub) glob() bool { return s.ref.name != cache.Wildcard }

// follower is a subscription that is to move.
type follower interface{ move() }

// valueBeforeRedirect is what a client holds of a name from before it became a redirect. The client keeps it until the
// target of the redirect is known; or, if it has a TTL, until that has expired.
// xDS: "TTL".
type valueBeforeRedirect struct {
	resource *cache.Resource
	sub      *nameSub
	stop     func() // nil without a TTL
	expired  bool   // the TTL has expired
	marked   bool   // see Subscription
}

// trouble is about subscriptions that most clients do not have, all of one type: names that are refused, names that
// have moved, and names and sets without a state whose control planes are unreachable.
type trouble struct {
	refused, lost int // how many of each are subscribed to
	lostFor       *cache.Error
	// deniedOwn is how many of the names are denied by their resource's own name.
	deniedOwn int
	// moved are names that have moved because of a new configuration, as long as they have no answer.
	moved []*nameSub
}

// includedSides are entries of a rollout's sides that the client reads while a group watches them for it. newSide is an
// entry of the new side. leftSide is an entry of the accepted side, of a group that the client has left while it was on
// the new side.
type includedSides struct{ newSide, leftSide *cache.Entry }

// nameTable has one client's subscriptions to names by their keys. The keys are in the subscriptions, usually as the
// very strings of the cache.
type nameTable struct {
	table hashtable.Table[*nameSub]
	// shared, if not nil, has the names that the client shares with others that request the same: they are not in the
	// table until an operation needs one of them individually.
	shared *membership
}

// membership is a client's place in a group of clients that request the same names. The client subscribes to all of
// them, except the names that it has taken, each of which is a nameSub. Any operation on one name takes it first
// (nameTable.get).
type membership struct {
	Member
	subs  *subscriptions
	group WatchGroup
	// sentUpTo: the client was sent everything up to this position.
	sentUpTo Position
	taken    NameBits
	nTaken   uint32
	// mayHold: the client may hold any of the names from an earlier stream.
	mayHold bool
	// unanswered is how many of the changes up to sentUpTo went in responses that the client has not answered, or had
	// not answered when the newest was sent.
	unanswered uint16
	// sentIn is the response that brought the client to sentUpTo.
	sentIn number
	// before is what the client holds from a group that it has left for this one, as long as some of that counts.
	before *heldNames
}

// heldNames are the marks of what a client holds of the names of a list, by their places; 0 for nothing.
type heldNames struct {
	marks []uint64
	left  int // how many are not 0
}

// review is a name for which one of the subscriptions that cover it has ended, has lost it, or has changed while
// another one may have it.
type review struct {
	name string
	// ended: the client has to get an answer, with the resource or with its removal.
	// xDS: "Unsubscribing from Resources".
	ended bool
	// unsubscribed: the client has unsubscribed from the name itself, which it may have made up.
	unsubscribed bool
}

// setIndex finds the sets of a client that may have a name.
type setIndex struct {
	wild   *setSub            // nil without a wildcard
	globs  map[string]*setSub // by key, as the client spells them
	byGlob map[string]*setSub // the same, by key of the canonical name
	views  []*setSub          // those of the globs that are views, in the order in which the client subscribed
}

// takePendingSets is takePending for sets.
func (s *subscriptions) takePendingSets(f func(*setSub) bool) {
	for len(s.pendingSets) > 0 {
		set := s.pendingSets[0]
		if !set.ended && !f(set) {
			return
		}
		set.queued = false
		s.pendingSets = s.pendingSets[1:]
	}
	s.pendingSets = nil
}

// holds reports that the client has, from before, what a set has under a name.
func (s *setSub) holds(name string) bool {
	if s == nil {
		return false
	}
	_, ok := s.initial[name]
	return ok
}

func (s *subscriptions) troubled() *trouble {
	if s.trouble == nil {
		s.trouble = new(trouble)
	}
	return s.trouble
}

func (s *subscriptions) countLostSet(set *setSub, lost bool) {
	switch {
	case lost == set.lost:
		return
	case lost:
		s.troubled().lost++
	default:
		s.trouble.lost--
	}
	set.lost = lost
}

// lookUp returns the key of what a client requests.
func (s *subscriptions) lookUp(a resourceRef) (cache.Key, error) {
	key, err := s.Host.Key(s.typeURL, a.name)
	key.Scope.Params = a.params
	if s.Passes && key.Scope.Derived == cache.Resolved {
		key.Scope.Derived = cache.Passed
	}
	return key, err
}

// lookUpName is lookUp for everything but the wildcard of the stream. A further wildcard, by a locator with other dynamic
// parameters, is refused: the members of both would be resources of the same names, and a client's wildcard is what
// lets it take a missing name as removed.
func (s *subscriptions) lookUpName(a resourceRef) (cache.Key, error) {
	if a.name == cache.Wildcard && s.wild != nil {
		return cache.Key{}, &cache.Error{Code: codes.ResourceExhausted, Message: fmt.Sprintf(
			"a stream can subscribe to one wildcard of a type: it already has %v, so %v is refused", s.wild.ref, a)}
	}
	return s.lookUp(a)
}

// excludeNew records that no group watches anything on the new side for the client. The cache must not be held.
func (s *subscriptions) excludeNew() {
	if s.sides == nil {
		return
	}
	for _, e := range [...]*cache.Entry{s.sides.newSide, s.sides.leftSide} {
		if e != nil {
			s.Topics.Exclude(e)
		}
	}
	s.sides = nil
}
