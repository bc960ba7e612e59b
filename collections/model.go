package collections

import (
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/inbox"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/urn"
)

// The objects of a Resolver, and how they refer to each other. doc.go explains them; the
// other files have their methods.

// Topics is the cache in which the Resolver watches leaf topics: a
// *cache.Cache.
type Topics interface {
	Watch(cache.Key, cache.Watcher) (e *cache.Entry, withheld *cache.Resource)
	WatchSet(cache.Key, cache.SetWatcher) *cache.Set
	Unwatch(cache.Watching)
	// Spelling returns how the resources that clients hold write a name: see cache.Cache.
	Spelling(typeURL, name string) string
	WatchSpelling(typeURL, name string, w cache.SpellingWatcher)
	UnwatchSpelling(typeURL, name string, w cache.SpellingWatcher)
}

// Names maps names to topics and policies. It must be safe for concurrent use.
type Names interface {
	// Key returns the key of the leaf topic of a canonical name or glob that a client
	// requests as typeURL. The relay sends the error to clients.
	Key(typeURL, name string) (cache.Key, error)
	// Policy returns when alternatives replace an authority's resources.
	Policy(authority string) Policy
	// Unreachable reports whether the servers of a scope are unreachable, and since when.
	Unreachable(cache.Scope) (since time.Time, down bool)
	// PassesOver reports whether the control plane of a leaf topic that has no answer has sent a SotW response for
	// other names of the type since then. Such a response has all names that exist, as far as it is ready.
	PassesOver(k cache.Key, since time.Time) bool
}

// Policy says when an alternative replaces an authority's resource, the primary.
type Policy struct {
	// Unreachable: use alternatives once the authority has been unreachable for Grace, even if
	// the primary is cached. If false, use them only if the primary is not cached.
	Unreachable bool
	Grace       time.Duration
	// Hysteresis is the time for which the primary must be available again before it is
	// used again.
	Hysteresis time.Duration
	// NotFound: also use alternatives if the primary does not exist.
	NotFound bool
}

// View is a configured view.
type View struct {
	// Collections are URLs of globs and list collections. Of two members with one name, the
	// member of the first collection wins.
	Collections []urn.URL
	// Rename gives members names under the requested glob.
	Rename bool
}

// Resolver is the cache.Source of all derived topics. Its exported methods are safe for
// concurrent use.
type Resolver struct {
	topics    Topics
	to        delivery.Receiver // of derived topics
	names     Names
	depth     int
	speaksFor func(authority, other string) bool
	log       *slog.Logger
	stop      chan struct{}
	done      chan struct{}
	stats     struct{ loops atomic.Uint64 }

	// inbox has the calls and the changed leaf topics that the goroutine has not processed
	// yet. The two flags belong to it: code that sets one also wakes the goroutine.
	inbox *inbox.Inbox[event]
	reach atomic.Bool // reachability has changed
	freed atomic.Bool // an update for which parked work waited has been stored

	// The fields below belong to the goroutine.
	derived      map[cache.Key]derived
	leaves       map[cache.Key]*leaf
	dirtyLookups map[*lookup]struct{} // that need an evaluation
	changed      map[derived]struct{} // that have something to write
	// choosing are the lookups that depend on reachability, mostly because of an alternative.
	// timers has the lookups that need an evaluation at some time.
	choosing  map[*lookup]struct{}
	timers    cache.Expiries[*lookup]
	loops     map[string]int // the number of lookups that run into each loop, see recordLoops
	loopLines loglines.Lines
	sets      *sets
	budget    workBudget
	holds     cache.ReadLocks
	parked    parked
	// queues are the queues with work, in the order of their turns. entryQueues are the queues
	// of entries, by authority.
	queues      []*workQueue
	entryQueues map[string]*workQueue
	together    map[cache.Scope]*together
	// rooms shrink the maps that clients fill.
	rooms struct{ derived, leaves, dirtyLookups, changed, choosing, entryQueues, together cache.Room }
}

// leaf is a leaf entry that lookups use. All lookups share one.
type leaf struct {
	cache.Watch
	resolver *Resolver
	key      cache.Key
	entry    *cache.Entry
	withheld *cache.Resource // see Topics.Watch
	users    map[*lookup]struct{}
	queued   inInbox

	// parsed has the entries of parsedFrom, for all users.
	parsed     *list
	parsedFrom *cache.Resource
}

// lookup keeps the result of a URL up to date until close: the resource found by its
// directives and by following redirects.
type lookup struct {
	resolver *Resolver
	start    target
	changed  func() // called by the goroutine when the result has changed, with updates held off

	result  result
	leaves  []*leaf            // used by the last evaluation, each once
	choices map[string]*choice // between alternatives, by URL
	set     *setContext        // the set to which it belongs, nil for an entry
	inQueue bool               // it is in its queue, perhaps no longer needed
	loops   []string           // found by the last evaluation, see recordLoops
	// needsReachability: the lookup depends on reachability even without a choice.
	needsReachability bool
}

// target is where a lookup begins.
type target struct {
	typeURL string
	params  string // as in cache.Scope
	side    side
	// leaf is the topic to begin with. If it is not nil, url is unused.
	leaf *cache.Key
	url  urn.URL
	// passRedirects: a redirect in place of the requested resource is the result.
	// Redirects of a list collection that has the resource are followed.
	passRedirects bool
	// path are the names that led here. If one of them comes again, there is a loop.
	path []string
}

// side says whether a lookup reads the new state of a rollout instead of the accepted one, and of which
// authority: see cache.Scope.New.
type side struct {
	isNew     bool
	authority string
}

func sideOf(k cache.Key) side { return side{k.Scope.New, k.Scope.Authority} }

// has reports whether the new topics of a scope are read.
func (s side) has(scope cache.Scope) bool { return s.isNew && scope.Authority == s.authority }

// result is the outcome of a lookup at one moment.
type result struct {
	// State is the state of the resource at its origin. Requested means unknown, or unknown
	// again: clients then keep the previous result. Err is the failure, if there is one.
	cache.State
	// origin is the name of the topic that has the resource, with the entry's name if
	// the resource is inline in a collection.
	origin string
	// leaf is the topic itself, nil if there is none.
	leaf *leaf
	// aliasOf is set if the name that the client requested is an alias: it is the own name of the
	// resource, list collection or redirect that has the alias.
	aliasOf string
	// unreachable: the resource is unavailable or out of date because an authority is
	// unreachable. withinGrace: the authority has been unreachable for less than its grace.
	unreachable, withinGrace bool
}

// choice is the state of the choice between a primary and its alternative.
type choice struct {
	// wantsAlt: the alternative is to be used, if it has a resource.
	wantsAlt bool
	// usesAlt: the alternative had a resource at the last evaluation.
	usesAlt          bool
	primaryGoodSince time.Time // since when the primary could be used again, zero if it cannot
	// waitsSince is when the primary was first found without an answer, zero if it has one. Only
	// with Policy.NotFound.
	waitsSince time.Time
}

// evaluation is one evaluation of a lookup.
type evaluation struct {
	*lookup
	now  time.Time
	used []*leaf
	// chosen are the URLs with an alternative that the evaluation has used.
	chosen map[string]bool
	loops  []string
	// nextAt is when the passing of time may change the result, zero for never.
	nextAt time.Time
}

// sets is the Resolver's state for derived sets. The Resolver's goroutine owns it.
type sets struct {
	views map[string]View
	// maxEntries is maxEntriesOfSet, except in tests.
	maxEntries int
	// steps are the steps in a queue. The value is false if the step was cancelled.
	steps map[step]bool
	// active are all steps that may become due or depend on reachability; timers are
	// their times.
	active    map[step]struct{}
	timers    cache.Expiries[step]
	clashKeys map[clashKey]struct{} // possible clashes of this round

	logs setLogs // of all sets that are not views

	clashes, failures atomic.Uint64
}

// setLogs limits the rate of the log lines about one view, or about all sets that are not views.
// Authors of list collections can make up any number of bad entries, and clients any number of globs
// with alternatives.
type setLogs struct{ entries, collections, clashes loglines.Lines }

// clashKey is a key with a possible clash.
type clashKey struct {
	union *union
	key   string
}

// clash has the inputs of the two members.
type clash struct{ winner, loser *input }

// setContext is the common data of all sources of a derived set.
type setContext struct {
	*Resolver
	log     *slog.Logger // with the attributes of the set
	typeURL string       // of the members
	params  string       // as in cache.Scope
	side    side
	// renameTo is the glob that gives members their names, empty if they keep their own.
	renameTo string
	// passRedirects: members that are redirects stay redirects.
	passRedirects bool
	// asEntries: members are entries of a list collection, and not looked up.
	asEntries bool
	// collections is the number of expanded collections. unanswered is the number of pending
	// queries, whose answers may have members of any name.
	collections, unanswered int
	// entries is the number of list entries in use; outstanding the number of scheduled
	// steps and lookups; unfound the number of members whose lookup has had no result.
	entries, outstanding, unfound int
	// together is of the derived set's scope. written: clients have the set. counted: it counts as busy there. See
	// together.go.
	together         *together
	written, counted bool
	// leavers are the lists with entries that are leaving.
	leavers map[*listSource]struct{}
	// hasWithheld: the set has withheld changes, which are written when it is not busy.
	hasWithheld bool
	// answer is the answer of a control plane to which the removals belong that are not written
	// yet: see noteAnswer. of is the number of members that their list had, 0 for none.
	answer cache.Answer
	of     int
	// ofGlob: a glob removes a member. The guard of the glob's leaf set has let it go.
	ofGlob  bool
	derived derived
	queue   workQueue
	logs    *setLogs
}

// step is deferred work of a source.
type step interface {
	// step does some of the work, and schedules itself again if there is more.
	step(now time.Time)
	// due returns when the step has to run again, zero for never.
	due() time.Time
	// context returns the set to which the source belongs.
	context() *setContext
}

// source gives members to a union: a glob, a list collection, a URL with an alternative, or a
// single member. It may have 100,000 members, so it is never evaluated as a whole: it passes
// each member, and later each change, to the [input] that its constructor gets. On the input,
// the source sets its candidates, and reports changes of its state.
type source interface {
	// state returns the state of the source as a whole.
	state() sourceState
	// keys calls yield for the keys of all its candidates. It may do so more than once for a
	// key, and for other keys.
	keys(yield func(key string))
	// refresh requests again the resources that must not be served to new subscribers from the
	// cache.
	refresh()
	// refuse records in the cache that a client has refused the candidate for a key.
	refuse(key string, sent uint32)
	close()
}

// sourceState is the state of a source as a whole.
type sourceState struct {
	// status is Requested until every member is known or has failed. Once it is Present or
	// Absent, later failures change neither the status nor the members.
	status cache.Status
	err    *cache.Error // when Failed
	// partial: some members were unavailable when it became Present or Absent, and still
	// are.
	partial bool
	// gap is the glob whose members the source has, empty if they may have any names. awaited: more of the first answer for
	// it may follow.
	gap     string
	awaited bool
	// stale is as in cache.SetUpdate.
	stale bool
	// unreachable and withinGrace are as in result.
	unreachable, withinGrace bool
}

func (o sourceState) known() bool { return o.status == cache.Present || o.status == cache.Absent }

// candidate is the resource or error that a source has for a key. The zero candidate is none.
type candidate struct {
	// resource is the last good one, nil if there was none.
	resource *cache.Resource
	// err is why the resource, or its newest version, is unavailable.
	err *cache.Error
}

// pendingCandidate is the candidate of a member that is requested and has no answer yet.
// Until the answer comes, the set does not report its removal: clients that have a member
// of that name keep it.
var pendingCandidate = candidate{err: &cache.Error{Code: codes.Unavailable, Message: "no answer yet"}}

// sink is notified by a union: a source that owns one, or a derived topic.
type sink interface {
	// winnerChanged reports that a key has another winner. renewed: the winner is new, was
	// renewed (xDS: "TTL"), or was requested again.
	winnerChanged(key string, was, is candidate, renewed bool)
	// stateChanged reports that the state may have changed.
	stateChanged()
}

// union merges the members of several sources. Of two members with one name, the member of the
// first source wins; when it goes, the other replaces it without a gap. The cost of a
// change does not depend on the number of members.
type union struct {
	*setContext
	sink    sink
	inputs  []*input
	members map[string]*candidates
	// contested are the keys for which several inputs have a candidate.
	contested  map[string]struct{}
	clashes    map[string]clash // logged clashes, by key
	unknown    int              // number of inputs with an unknown state
	incomplete int              // number of inputs of which a part is unavailable
	stale      int              // number of inputs of which a part is stale
	// onFilled, if not nil, is called when an input gets its first member, or loses its
	// last.
	onFilled func()
}

// input is a source of a union, with its rank.
type input struct {
	union      *union
	label      string // its name in logs
	rank       int    // the lowest wins; notCounted if its members are not used
	source     source
	known      bool         // its state is not Requested
	failure    *cache.Error // of its state, if that is Failed
	incomplete bool         // a part of it is unavailable, perhaps temporarily
	gap        cache.Gap    // the glob that is incomplete; without a name if it is not known which names are missing
	stale      bool         // a part of it is stale
	available  int          // number of candidates with a resource
	index      int          // in union.inputs
}

const (
	notCounted = -1
	// leaving is the lowest rank of inputs that are removed as soon as the others are
	// known.
	leaving = 1 << 30
)

// derived is a derived topic.
type derived interface {
	key() cache.Key
	// appendTo appends the changes since its last call to the update of the topic's
	// scope and type.
	appendTo(*cache.Update)
	// refresh requests again the resources that must not be served to new subscribers from the
	// cache (Resource.DoNotCache).
	refresh()
	// refuse records in the cache that a client has refused the resource, or a member of the set.
	refuse(name string, sent uint32)
	close()
}

// parked is work that waits until an update is stored. It counts as outstanding.
type parked struct {
	steps   []step
	lookups []*lookup
}

// workQueue is work that waits for its turn.
type workQueue struct {
	steps     []step
	lookups   []*lookup
	active    bool   // it is in Resolver.queues
	authority string // of its entries, empty for a set
}

// workBudget is the number of items that may still be processed: in this round, and of the
// queue whose turn it is.
type workBudget struct {
	round, queue int
	sinceRelease int // items processed since updates were last allowed
}

// candidates are the candidates of a union's inputs for one key.
type candidates struct {
	one     rankedCandidate // the only one, if several is nil
	several *candidateHeap
	winner  candidate // the one in use
}

// rankedCandidate is a candidate with the input that has it.
type rankedCandidate struct {
	from *input
	candidate
}

// candidateHeap is a heap of several candidates: the first wins. index has the position of
// each input.
type candidateHeap struct {
	list  []rankedCandidate
	index map[*input]int
}

// maxCollections bounds the collections in one set: lists may contain lists.
const maxCollections = 1000

// maxEntriesOfSet bounds the list entries in use in one set: members and collections.
const maxEntriesOfSet = 200_000

// note is one call of Start, Refresh or Stop.
type note struct {
	key           cache.Key
	refresh, stop bool
}

// pendingQuery is a collection without an answer so far, or an alternative of which not all
// members are known. It also ends when the answer is no longer needed.
type pendingQuery struct{ set *setContext }
