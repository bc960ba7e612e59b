package collections

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// follow is what a URL comes to: the resource that is found by obeying its
// directives and following redirects. It is kept up to date until close.
type follow struct {
	resolver *Resolver
	start    target
	changed  func() // the result is another; called by the goroutine, with updates held

	result  result
	leaves  map[*leaf]struct{} // that the last evaluation used
	choices map[string]*choice // between alternatives, by URL
	dueAt   time.Time          // when to evaluate again, zero for never
}

// target is where a follow begins.
type target struct {
	typeURL string
	params  string // as in cache.Scope
	// leaf is the topic to begin with: then url is not used.
	leaf *cache.Key
	url  urn.URL
	// passed are names that were passed on the way to here: to come upon one of
	// them is a loop.
	passed []string
}

// result is what a URL comes to at one moment.
type result struct {
	// State is that of the resource that was found, in the words of its origin.
	// Requested: not known yet. Err is of the failure, if there is one.
	cache.State
	// origin is the name of the topic that has the resource, with the entry's name
	// if it was inside a collection.
	origin string
	// down: it is not to be had, or out of date, because an authority cannot be
	// reached.
	down bool
}

// follow begins a follow, which is evaluated in this round.
func (r *Resolver) follow(start target, changed func()) *follow {
	f := &follow{resolver: r, start: start, changed: changed, leaves: map[*leaf]struct{}{}}
	r.follows[f] = struct{}{}
	return f
}

func (f *follow) close() {
	delete(f.resolver.follows, f)
	delete(f.resolver.choosing, f)
	for l := range f.leaves {
		l.leave(f)
	}
}

// refresh has what is not for newcomers asked for anew.
func (f *follow) refresh() {
	for l := range f.leaves {
		l.refresh()
	}
}

func (f *follow) due(now time.Time) bool { return !f.dueAt.IsZero() && !f.dueAt.After(now) }

// evaluate brings the result up to date.
func (f *follow) evaluate(now time.Time) {
	e := evaluation{follow: f, now: now, used: map[*leaf]struct{}{}, chosen: map[string]bool{}}
	f.dueAt = time.Time{}
	var is result
	if f.start.leaf != nil {
		is = e.leaf(*f.start.leaf, f.start.passed)
	} else {
		is = e.url(f.start.url, f.start.typeURL, f.start.passed)
	}
	for l := range f.leaves {
		if _, still := e.used[l]; !still {
			l.leave(f)
		}
	}
	f.leaves = e.used
	maps.DeleteFunc(f.choices, func(url string, _ *choice) bool { return !e.chosen[url] })
	if was := f.result; !sameError(was.Err, is.Err) || was.Status != is.Status || was.Resource != is.Resource || was.origin != is.origin || was.Beats != is.Beats || was.down != is.down {
		f.result = is
		f.changed()
	}
}

// evaluation is one evaluation of a follow.
type evaluation struct {
	*follow
	now  time.Time
	used map[*leaf]struct{}
	// chosen are the URLs of which there was a choice to be made.
	chosen map[string]bool
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
	if asked := shortType(typeURL); asked != name.Type {
		return failure(codes.InvalidArgument, "%s is of type %s, where %s is wanted", name.Name, name.Type, asked)
	}
	key, err := e.resolver.names.Key(typeURL, name.Name)
	if err != nil {
		return result{State: asState(err), origin: name.Name}
	}
	key.Scope.Params = e.start.params
	return e.leaf(key, passed)
}

// leaf evaluates a leaf topic.
func (e *evaluation) leaf(key cache.Key, passed []string) result {
	if at := slices.Index(passed, key.Name); at >= 0 {
		return e.loop(append(slices.Clone(passed[at:]), key.Name))
	}
	l := e.resolver.leaf(key)
	l.users[e.follow] = struct{}{}
	e.used[l] = struct{}{}
	is := result{State: l.state(), origin: key.Name}
	is.Was = nil
	is.down = e.down(key, &is.State)
	if is.Status != cache.Present || is.Resource.Redirect() == "" {
		return is
	}
	passed = append(slices.Clone(passed), key.Name)
	if len(passed) > e.resolver.depth {
		return failure(codes.FailedPrecondition, "more than %d redirects and alternatives in a row: %s", e.resolver.depth, chain(passed))
	}
	to, err := urn.ParseURL(is.Resource.Redirect())
	if err != nil {
		return failure(codes.InvalidArgument, "redirect of %s: %v", key.Name, err)
	}
	found := e.url(to, key.TypeURL, passed)
	found.down = found.down || is.down
	return found
}

// loop is the result of a loop of redirects.
func (e *evaluation) loop(names []string) result {
	is := failure(codes.FailedPrecondition, "redirects in a loop: %s", chain(names))
	if was := e.result.Err; was == nil || *was != *is.Err {
		e.resolver.stats.loops.Add(1)
		e.resolver.log.Warn("redirects in a loop", "names", chain(names))
	}
	return is
}

func chain(names []string) string { return strings.Join(names, " -> ") }

// failure is the result of what cannot be obeyed.
func failure(code codes.Code, format string, args ...any) result {
	return result{State: cache.State{Status: cache.Failed, Err: &cache.Error{Code: code, Message: fmt.Sprintf(format, args...)}}}
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

// shortType is the part of a type URL that names have.
func shortType(typeURL string) string { return typeURL[strings.LastIndexByte(typeURL, '/')+1:] }

// known says that there is an answer.
func (r *result) known() bool { return r.Status == cache.Present || r.Status == cache.Absent }

// sameError says whether two errors are the same to clients.
func sameError(a, b *cache.Error) bool {
	return a == b || a != nil && b != nil && *a == *b
}
