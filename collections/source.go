package collections

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// Sources of derived sets: a glob, a list collection, a URL with an alternative, or a
// single member. A source may have 100,000 members, so it is never evaluated as a whole:
// it passes each member, and later each change, to its union.

// source gives members to a union. Its constructor gets the [input], on which it sets its
// candidates, and which it notifies when its state changes.
type source interface {
	// state returns the state of the source as a whole.
	state() sourceState
	// keys yields the keys of all its candidates. It may yield others, and a key more than
	// once.
	keys(yield func(key string))
	// refresh requests anew what must not be served to new subscribers from the cache.
	refresh()
	close()
}

// sourceState is the state of a source as a whole.
type sourceState struct {
	// status is Requested until every member is known or has failed. Once it is Present
	// or Absent it stays so: later failures leave the members as they are.
	status cache.Status
	err    *cache.Error // when Failed
	// partial: some members were unavailable when it became Present or Absent, and still
	// are.
	partial bool
	// unreachable and withinGrace are as in result.
	unreachable, withinGrace bool
}

func (o sourceState) known() bool { return o.status == cache.Present || o.status == cache.Absent }

// candidate is what a source has for a key. The zero candidate is none.
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
	// renewed (xDS: "TTL"), or was requested anew.
	winnerChanged(key string, was, is candidate, renewed bool)
	// stateChanged reports that the state may have changed.
	stateChanged()
}

// setContext is the common data of all sources of a derived set.
type setContext struct {
	*Resolver
	log     *slog.Logger // with the attributes of the set
	typeURL string       // of the members
	params  string       // as in cache.Scope
	// renameTo is the glob that gives members their names, empty if they keep their own.
	renameTo string
	// passRedirects: members that are redirects stay redirects.
	passRedirects bool
	// asEntries: members are entries of a list collection, and not looked up.
	asEntries bool
	// collections is the number of expanded collections, unanswered the number of pending
	// queries: the answer to one may have any name.
	collections, unanswered int
	// entries is the number of list entries in use; outstanding the number of scheduled
	// steps and lookups.
	entries, outstanding int
	// hasWithheld: the set has withheld changes, to write when it is not busy.
	hasWithheld bool
	derived     derived
	queue       workQueue
	logs        *setLogs
}

// setLogs rate limit the log lines of a view, or of all sets that are no views. Authors of
// list collections can make up any number of bad entries, and clients any number of globs
// with alternatives.
type setLogs struct{ entries, collections, clashes loglines.Lines }

// reportBadEntry logs and counts a list entry that cannot be used.
func (s *setContext) reportBadEntry(collection string, err *cache.Error) {
	s.sets.failures.Add(1)
	if log, ok := s.logs.entries.Next(s.log); ok {
		log.Warn("bad entry in a list collection", "collection", collection, "error", err.Error())
	}
}

// checkAuthority returns an error if an authority may not send a resource of that name: one
// of another authority, unless the same servers serve both.
func (r *Resolver) checkAuthority(authority, name string) error {
	of, ok := urn.AuthorityOf(name)
	if !ok || of == authority || r.speaksFor != nil && r.speaksFor(authority, of) {
		return nil
	}
	return fmt.Errorf("its resource is %q of authority %q, which authority %q may not send", loglines.Clip(name), loglines.Clip(of), authority)
}

// pendingQuery is a collection without an answer so far, or an alternative of which not all
// members are known. It also ends when nobody needs the answer any more.
type pendingQuery struct{ set *setContext }

func (s *setContext) beginQuery() pendingQuery {
	s.unanswered++
	return pendingQuery{s}
}

// endQuery may be called more than once.
func (q *pendingQuery) endQuery() {
	s := q.set
	if q.set = nil; s == nil {
		return
	}
	if s.unanswered--; !s.busy() && s.hasWithheld {
		s.changed[s.derived] = struct{}{}
	}
}

// maxCollections bounds the collections in one set: lists may contain lists.
const maxCollections = 1000

// maxEntriesOfSet bounds the list entries in use in one set: members and collections.
const maxEntriesOfSet = 200_000

// memberKey returns the key of a member, and its name as clients see it.
func (s *setContext) memberKey(name string) (key, spelled string) {
	name = strings.Clone(name) // the name may share the bytes of a resource
	key = canonical(name)
	if s.renameTo != "" {
		key = urn.MemberOf(s.renameTo, key)
		return key, key
	}
	return key, name
}

// canonical returns the canonical name. A bad xdstp name stays as it is.
func canonical(name string) string {
	if key, err := urn.KeyOf(name); err == nil {
		return key.Name
	}
	return name
}

// newCollectionSource returns the source of a URL of a glob or list collection. path are
// the names and URLs on the way to it.
func (s *setContext) newCollectionSource(to *input, u urn.URL, passed []string) source {
	if alt, ok := u.Alt(); ok {
		return newAltSource(s, to, u, alt, passed)
	}
	return s.newPrimarySource(to, u, passed)
}

// newPrimarySource is newCollectionSource without the alternative.
func (s *setContext) newPrimarySource(to *input, u urn.URL, passed []string) source {
	short := xdstype.Message(s.typeURL)
	_, entry := u.Entry()
	switch key := u.Key(); {
	case len(passed) > s.depth:
		return failedSource{err: failure(codes.FailedPrecondition, "more than %d collections, redirects and alternatives in a row: %s", s.depth, joinPath(append(passed, key.Name))).Err}
	case s.collections == maxCollections:
		return failedSource{err: failure(codes.ResourceExhausted, "more than %d collections in one", maxCollections).Err}
	case key.Glob && key.Type == short && !entry:
		leaf, err := s.names.Key(s.typeURL, key.Name)
		if err != nil {
			return failedSource{err: asError(err), unreachable: true} // no source, as in lookUpName
		}
		leaf.Scope.Params = s.params
		return newGlobSource(s, to, leaf)
	case !key.Glob && key.Type == short+"Collection" && !entry:
		return newListSource(s, to, u, passed)
	default:
		return failedSource{err: failure(codes.InvalidArgument, "%s has type %s, want a collection of %s", u, key.Type, short).Err}
	}
}

// isCollection reports whether a locator in a list collection locates many members.
func isCollection(u urn.URL) bool {
	_, entry := u.Entry()
	return u.Key().Glob || !entry && strings.HasSuffix(u.Key().Type, "Collection")
}

// asError returns the error of a name for which Names.Key has an error.
func asError(err error) *cache.Error { return stateOfError(err).Err }

// failedSource is a source that cannot be opened.
type failedSource struct {
	err         *cache.Error
	unreachable bool // as in sourceState
}

func (f failedSource) state() sourceState {
	return sourceState{status: cache.Failed, err: f.err, unreachable: f.unreachable}
}
func (failedSource) keys(func(string)) {}
func (failedSource) refresh()          {}
func (failedSource) close()            {}

// step is deferred work of a source.
type step interface {
	// step does some of the work, and schedules itself again if there is more.
	step(now time.Time)
	// due returns when the step has to run again, zero for never.
	due() time.Time
	// context returns the set to which the source belongs.
	context() *setContext
}

func (s *setContext) context() *setContext { return s }

// startStep schedules a step, and from then on also when it is due or reachability changes.
func (r *Resolver) startStep(s step) {
	r.sets.active[s] = struct{}{}
	r.schedule(s)
}

func (r *Resolver) endStep(s step) {
	delete(r.sets.active, s)
	r.sets.timers.End(s)
	r.unschedule(s)
}

// busy reports whether work or answers are outstanding that may change any member.
func (s *setContext) busy() bool { return s.unanswered+s.outstanding > 0 }

// stepDone records that one step or lookup less is outstanding.
func (s *setContext) stepDone() {
	if s.outstanding--; !s.busy() && s.hasWithheld {
		s.changed[s.derived] = struct{}{}
	}
}
