package collections

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// lookup keeps the result of a URL up to date until close: the resource found by its
// directives and by following redirects.
type lookup struct {
	resolver *Resolver
	start    target
	changed  func() // called when the result has changed, by the goroutine, with updates held

	result  result
	leaves  []*leaf            // used by the last evaluation, each once
	choices map[string]*choice // between alternatives, by URL
	set     *setContext        // the set to which it belongs, nil for an entry
	inQueue bool               // it is in its queue, perhaps no longer needed
	loops   []string           // met by the last evaluation, see recordLoops
	dueAt   time.Time          // time of the next evaluation, zero for never
	// needsReachability: it depends on reachability also without a choice.
	needsReachability bool
	heapIndex         int // in Resolver.timers, from 1; 0 if it is not there
}

// target is where a lookup begins.
type target struct {
	typeURL string
	params  string // as in cache.Scope
	// leaf is the topic to begin with. If it is not nil, url is unused.
	leaf *cache.Key
	url  urn.URL
	// passRedirects: a redirect in place of the requested resource is the result.
	// Redirects of a list collection that has the resource are followed.
	passRedirects bool
	// path are the names on the way to here. Meeting one of them again is a loop.
	path []string
}

// result is the outcome of a lookup at one moment.
type result struct {
	// State is the state of the resource at its origin. Requested: unknown, or unknown
	// again; then clients keep the previous result. Err is the failure, if there is one.
	cache.State
	// origin is the name of the topic that has the resource, with the entry's name if
	// the resource is inline in a collection.
	origin string
	// leaf is the topic itself, nil if there is none.
	leaf *leaf
	// unreachable: the resource is unavailable or out of date because an authority is
	// unreachable. withinGrace: the authority is unreachable for less than its grace.
	unreachable, withinGrace bool
}

// newLookup begins a lookup, which is evaluated when its turn comes. set is the set to
// which it belongs, nil for an entry.
func (r *Resolver) newLookup(start target, of *setContext, changed func()) *lookup {
	f := &lookup{resolver: r, start: start, set: of, changed: changed}
	r.markDirty(f)
	return f
}

func (f *lookup) close() {
	f.resolver.markClean(f)
	r := f.resolver
	r.choosing = cache.Without(r.choosing, &r.rooms.choosing, f)
	f.resolver.timers.set(f, time.Time{})
	f.resolver.recordLoops(f.loops, nil)
	for _, l := range f.leaves {
		l.release(f)
	}
}

// refresh requests resources anew that must not be served from the cache.
func (f *lookup) refresh() {
	for _, l := range f.leaves {
		l.refresh()
	}
}

// evaluate updates the result.
func (f *lookup) evaluate(now time.Time) {
	e := evaluation{lookup: f, now: now}
	var is result
	if f.start.leaf != nil {
		is = e.lookUpLeaf(*f.start.leaf, f.start.path)
	} else {
		is = e.lookUpURL(f.start.url, f.start.typeURL, f.start.path)
	}
	for _, l := range f.leaves {
		if !slices.Contains(e.used, l) {
			l.release(f)
		}
	}
	f.leaves = e.used
	f.resolver.recordLoops(f.loops, e.loops)
	f.loops = e.loops
	f.forgetChoices(e.chosen)
	f.resolver.timers.set(f, e.nextAt)
	if !f.result.same(&is) {
		f.result = is
		f.changed()
	}
}

// evaluation is one evaluation of a lookup.
type evaluation struct {
	*lookup
	now  time.Time
	used []*leaf
	// chosen are the URLs with an alternative that it has met.
	chosen map[string]bool
	loops  []string
	// nextAt is when time alone may change the result, zero for never.
	nextAt time.Time
}

// lookUpURL evaluates a URL. The result must be of a type. path are the names on the
// way to it.
func (e *evaluation) lookUpURL(u urn.URL, typeURL string, passed []string) result {
	alt, ok := u.Alt()
	if !ok {
		return e.lookUpPrimary(u, typeURL, passed)
	}
	return e.choose(u, alt, typeURL, passed)
}

// lookUpPrimary evaluates a URL without its alternative.
func (e *evaluation) lookUpPrimary(u urn.URL, typeURL string, passed []string) result {
	if entry, ok := u.Entry(); ok {
		return e.lookUpEntry(u, entry, typeURL, passed)
	}
	return e.lookUpName(u.Key(), typeURL, passed)
}

// lookUpName evaluates a name: its resource, or the target if that is a redirect.
func (e *evaluation) lookUpName(name urn.Key, typeURL string, passed []string) result {
	if name.Glob {
		return failure(codes.InvalidArgument, "%s is a glob collection, want the name of one resource", name.Name)
	}
	if asked := xdstype.Message(typeURL); asked != name.Type {
		return failure(codes.InvalidArgument, "%s has type %s, want %s", name.Name, name.Type, asked)
	}
	key, err := e.resolver.names.Key(typeURL, name.Name)
	if err != nil {
		// The configuration gives the name no source, so its alternative is used.
		state := stateOfError(err)
		state.Err = e.withPath(state.Err, passed, name.Name)
		return result{State: state, origin: name.Name, unreachable: true}
	}
	key.Scope.Params = e.start.params
	return e.lookUpLeaf(key, passed)
}

// lookUpLeaf evaluates a leaf topic.
func (e *evaluation) lookUpLeaf(key cache.Key, passed []string) result {
	if at := slices.Index(passed, key.Name); at >= 0 {
		return e.loopError(passed[at:])
	}
	l := e.use(key)
	is := result{State: l.state(), origin: key.Name, leaf: l}
	is.Was = nil
	if is.Status == cache.Failed {
		is.Err = e.withPath(is.Err, passed, key.Name)
	}
	var again time.Time
	is.unreachable, is.withinGrace, again = e.resolver.reachability(key, is.Status, is.Err, e.now)
	e.evaluateAgainAt(again)
	if is.Status != cache.Present || is.Resource.Redirect() == "" || e.start.passRedirects && key.TypeURL == e.start.typeURL {
		return is
	}
	to, err := urn.ParseURL(is.Resource.Redirect())
	if err != nil {
		return failure(codes.InvalidArgument, "redirect of %s: %v", key.Name, err)
	}
	return e.followRedirect(key.Name, &is, to, key.TypeURL, passed)
}

// use returns the leaf of a key. The lookup watches it until an evaluation does not use
// it.
func (e *evaluation) use(key cache.Key) *leaf {
	l, isNew := e.resolver.leaf(key)
	if slices.Contains(e.used, l) {
		return l
	}
	e.used = append(e.used, l)
	if _, known := l.users[e.lookup]; !known {
		l.users[e.lookup] = struct{}{}
		if !isNew {
			l.refresh() // as for a new subscriber
		}
	}
	return l
}

// followRedirect evaluates the target of the redirect that was found under the name
// from. TP1: "Server redirects".
func (e *evaluation) followRedirect(from string, is *result, to urn.URL, typeURL string, passed []string) result {
	passed = append(slices.Clone(passed), from)
	if len(passed) > e.resolver.depth {
		return e.tooDeep(passed)
	}
	found := e.lookUpURL(to, typeURL, passed)
	found.unreachable, found.withinGrace = found.unreachable || is.unreachable, found.withinGrace || is.withinGrace
	if found.Status == cache.Present && found.Err == nil {
		found.Err = is.Err // the origin failed to send a newer redirect
	}
	return found
}

func (e *evaluation) tooDeep(passed []string) result {
	return failure(codes.FailedPrecondition, "more than %d redirects and alternatives in a row: %s", e.resolver.depth, joinPath(passed))
}

// failure returns a failed result.
func failure(code codes.Code, format string, args ...any) result {
	return result{State: cache.State{Status: cache.Failed, Err: &cache.Error{Code: code, Message: loglines.Clip(fmt.Sprintf(format, args...))}}}
}

// stateOfError returns the state of a name for which Names.Key has an error.
func stateOfError(err error) cache.State {
	var why *cache.Error
	if !errors.As(err, &why) {
		why = &cache.Error{Code: codes.NotFound, Message: err.Error()}
	}
	if why.Code == codes.NotFound {
		return cache.State{Status: cache.Absent, Err: why}
	}
	return cache.State{Status: cache.Failed, Err: why}
}

// same reports whether two results are the same to whoever uses them.
func (r *result) same(is *result) bool {
	return r.Status == is.Status && r.Resource == is.Resource && r.Beats == is.Beats &&
		r.origin == is.origin && r.leaf == is.leaf && r.unreachable == is.unreachable && r.withinGrace == is.withinGrace && sameError(r.Err, is.Err)
}

// sameError reports whether two errors are the same to clients.
func sameError(a, b *cache.Error) bool {
	return a == b || a != nil && b != nil && *a == *b
}
