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

// follow is what a URL comes to: the resource that is found by obeying its
// directives and following redirects. It is kept up to date until close.
type follow struct {
	resolver *Resolver
	start    target
	changed  func() // the result is another; called by the goroutine, with updates held

	result  result
	leaves  []*leaf            // that the last evaluation used, each once
	choices map[string]*choice // between alternatives, by URL
	of      *setting           // of the set that it is for, nil if it is for an entry
	waits   bool               // it is in its line, perhaps for nothing
	loops   []string           // that the last evaluation met, see noteLoops
	dueAt   time.Time          // when to evaluate again, zero for never
	// reaches: whether its authorities can be reached is of interest also if there is
	// no choice.
	reaches bool
	place   int // in Resolver.due, from 1; 0 if it is not there
}

// target is where a follow begins.
type target struct {
	typeURL string
	params  string // as in cache.Scope
	// leaf is the topic to begin with: then url is not used.
	leaf *cache.Key
	url  urn.URL
	// passes: a redirect in the place of what is wanted is a result, and not followed.
	// What is on the way to it, a list collection that it is in, is.
	passes bool
	// passed are names that were passed on the way to here: to come upon one of
	// them is a loop.
	passed []string
}

// result is what a URL comes to at one moment.
type result struct {
	// State is that of the resource that was found, in the words of its origin.
	// Requested: not known, or not known any more, which is no reason to give up what
	// was found before. Err is of the failure, if there is one.
	cache.State
	// origin is the name of the topic that has the resource, with the entry's name
	// if it was inside a collection.
	origin string
	// leaf is the topic itself, nil if there is none.
	leaf *leaf
	// down: it is not to be had, or out of date, because an authority cannot be
	// reached. shaky: that it cannot be reached is too new to count.
	down, shaky bool
}

// follow begins a follow, which is evaluated in this round. of is as in the follow.
func (r *Resolver) follow(start target, of *setting, changed func()) *follow {
	f := &follow{resolver: r, start: start, of: of, changed: changed}
	r.dirty(f)
	return f
}

func (f *follow) close() {
	f.resolver.clean(f)
	r := f.resolver
	r.choosing = cache.Without(r.choosing, &r.rooms.choosing, f)
	f.resolver.due.set(f, time.Time{})
	f.resolver.noteLoops(f.loops, nil)
	for _, l := range f.leaves {
		l.leave(f)
	}
}

// refresh has what is not for newcomers asked for anew.
func (f *follow) refresh() {
	for _, l := range f.leaves {
		l.refresh()
	}
}

// evaluate brings the result up to date.
func (f *follow) evaluate(now time.Time) {
	e := evaluation{follow: f, now: now}
	var is result
	if f.start.leaf != nil {
		is = e.leaf(*f.start.leaf, f.start.passed)
	} else {
		is = e.url(f.start.url, f.start.typeURL, f.start.passed)
	}
	for _, l := range f.leaves {
		if !slices.Contains(e.used, l) {
			l.leave(f)
		}
	}
	f.leaves = e.used
	f.resolver.noteLoops(f.loops, e.loops)
	f.loops = e.loops
	f.endChoices(e.chosen)
	f.resolver.due.set(f, e.again)
	if !f.result.same(&is) {
		f.result = is
		f.changed()
	}
}

// evaluation is one evaluation of a follow.
type evaluation struct {
	*follow
	now  time.Time
	used []*leaf
	// chosen are the URLs of which there was a choice to be made.
	chosen map[string]bool
	loops  []string
	// again is when what comes of it may be another for no other reason than the
	// time, zero for never.
	again time.Time
}

// url evaluates a URL that is wanted as a type. passed are the names on the way to
// it.
func (e *evaluation) url(u urn.URL, typeURL string, passed []string) result {
	alt, ok := u.Alt()
	if !ok {
		return e.primary(u, typeURL, passed)
	}
	return e.choose(u, alt, typeURL, passed)
}

// primary evaluates a URL without its alternative.
func (e *evaluation) primary(u urn.URL, typeURL string, passed []string) result {
	if entry, ok := u.Entry(); ok {
		return e.entry(u, entry, typeURL, passed)
	}
	return e.name(u.Key(), typeURL, passed)
}

// name evaluates a name: the resource under it, or what that redirects to.
func (e *evaluation) name(name urn.Key, typeURL string, passed []string) result {
	if name.Glob {
		return failure(codes.InvalidArgument, "%s is a glob collection, where one resource is wanted", name.Name)
	}
	if asked := xdstype.Message(typeURL); asked != name.Type {
		return failure(codes.InvalidArgument, "%s is of type %s, where %s is wanted", name.Name, name.Type, asked)
	}
	key, err := e.resolver.names.Key(typeURL, name.Name)
	if err != nil {
		// What can mean nothing here can never be had, whatever it is elsewhere.
		state := asState(err)
		state.Err = e.byWayOf(state.Err, passed, name.Name)
		return result{State: state, origin: name.Name, down: true}
	}
	key.Scope.Params = e.start.params
	return e.leaf(key, passed)
}

// leaf evaluates a leaf topic.
func (e *evaluation) leaf(key cache.Key, passed []string) result {
	if at := slices.Index(passed, key.Name); at >= 0 {
		return e.loop(passed[at:])
	}
	l := e.use(key)
	is := result{State: l.state(), origin: key.Name, leaf: l}
	is.Was = nil
	if is.Status == cache.Failed {
		is.Err = e.byWayOf(is.Err, passed, key.Name)
	}
	var again time.Time
	is.down, is.shaky, again = e.resolver.reach(key, is.Status, is.Err, e.now)
	e.wakeAt(again)
	if is.Status != cache.Present || is.Resource.Redirect() == "" || e.start.passes && key.TypeURL == e.start.typeURL {
		return is
	}
	to, err := urn.ParseURL(is.Resource.Redirect())
	if err != nil {
		return failure(codes.InvalidArgument, "redirect of %s: %v", key.Name, err)
	}
	return e.redirect(key.Name, &is, to, key.TypeURL, passed)
}

// use returns the leaf of a key, which is watched as long as evaluations use it.
func (e *evaluation) use(key cache.Key) *leaf {
	l, isNew := e.resolver.leaf(key)
	if slices.Contains(e.used, l) {
		return l
	}
	e.used = append(e.used, l)
	if _, known := l.users[e.follow]; !known {
		l.users[e.follow] = struct{}{}
		if !isNew {
			l.refresh() // of what is not for newcomers
		}
	}
	return l
}

// redirect evaluates what is found, under the name from, to be a redirect.
// TP1: "Server redirects".
func (e *evaluation) redirect(from string, is *result, to urn.URL, typeURL string, passed []string) result {
	passed = append(slices.Clone(passed), from)
	if len(passed) > e.resolver.depth {
		return e.tooDeep(passed)
	}
	found := e.url(to, typeURL, passed)
	found.down, found.shaky = found.down || is.down, found.shaky || is.shaky
	if found.Status == cache.Present && found.Err == nil {
		found.Err = is.Err // a newer redirect could not be had
	}
	return found
}

func (e *evaluation) tooDeep(passed []string) result {
	return failure(codes.FailedPrecondition, "more than %d redirects and alternatives in a row: %s", e.resolver.depth, chain(passed))
}

// failure is the result of what cannot be obeyed.
func failure(code codes.Code, format string, args ...any) result {
	return result{State: cache.State{Status: cache.Failed, Err: &cache.Error{Code: code, Message: loglines.Clip(fmt.Sprintf(format, args...))}}}
}

// asState is the state of a name that can mean nothing.
func asState(err error) cache.State {
	var why *cache.Error
	if !errors.As(err, &why) {
		why = &cache.Error{Code: codes.NotFound, Message: err.Error()}
	}
	if why.Code == codes.NotFound {
		return cache.State{Status: cache.Absent, Err: why}
	}
	return cache.State{Status: cache.Failed, Err: why}
}

// same says whether there is nothing new to somebody who knows r.
func (r *result) same(is *result) bool {
	return r.Status == is.Status && r.Resource == is.Resource && r.Beats == is.Beats &&
		r.origin == is.origin && r.leaf == is.leaf && r.down == is.down && r.shaky == is.shaky && sameError(r.Err, is.Err)
}

// sameError says whether two errors are the same to clients.
func sameError(a, b *cache.Error) bool {
	return a == b || a != nil && b != nil && *a == *b
}
