package collections

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// newLookup begins a lookup, which is evaluated when its turn comes. of is the set to
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
	f.resolver.timers.End(f)
	f.resolver.recordLoops(f.loops, nil)
	for _, l := range f.leaves {
		l.release(f)
	}
}

// refresh requests again the resources that must not be served from the cache.
func (f *lookup) refresh() {
	for _, l := range f.leaves {
		l.refresh()
	}
}

// refuse records in the cache that a client has refused the resource that was found.
func (f *lookup) refuse(sent uint32) {
	if l := f.result.leaf; l != nil {
		l.entry.Refuse(sent)
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
	f.setTimer(e.nextAt)
	if !f.result.same(&is) {
		f.result = is
		f.changed()
	}
}

// setTimer schedules an evaluation for a time. The zero time cancels it.
func (f *lookup) setTimer(at time.Time) {
	if at.IsZero() {
		f.resolver.timers.End(f)
	} else {
		f.resolver.timers.Set(f, at)
	}
}

// lookUpURL evaluates a URL. The result must have the given type. path are the names on the
// way to the URL.
func (e *evaluation) lookUpURL(u urn.URL, typeURL string, path []string) result {
	alt, ok := u.Alt()
	if !ok {
		return e.lookUpPrimary(u, typeURL, path)
	}
	return e.choose(u, alt, typeURL, path)
}

// lookUpPrimary evaluates a URL without its alternative.
func (e *evaluation) lookUpPrimary(u urn.URL, typeURL string, path []string) result {
	if entry, ok := u.Entry(); ok {
		return e.lookUpEntry(u, entry, typeURL, path)
	}
	return e.lookUpName(u.Key(), typeURL, path)
}

// lookUpName evaluates a name: its resource, or the target if that is a redirect.
func (e *evaluation) lookUpName(name urn.Key, typeURL string, path []string) result {
	if name.Glob {
		return failure(codes.InvalidArgument, "%s is a glob collection, want the name of one resource", name.Name)
	}
	if requested := xdstype.Message(typeURL); requested != name.Type {
		return failure(codes.InvalidArgument, "%s has type %s, want %s", name.Name, name.Type, requested)
	}
	key, err := e.resolver.names.Key(typeURL, name.Name)
	if err != nil {
		// The configuration has no source for the name, so its alternative is used.
		state := stateOfError(err)
		state.Err = e.withPath(state.Err, path, name.Name)
		return result{State: state, origin: name.Name, unreachable: true}
	}
	key.Scope.Params, key.Scope.New = e.start.params, e.start.side.has(key.Scope)
	return e.lookUpLeaf(key, path)
}

// lookUpLeaf evaluates a leaf topic.
func (e *evaluation) lookUpLeaf(key cache.Key, path []string) result {
	if at := slices.Index(path, key.Name); at >= 0 {
		return e.loopError(path[at:])
	}
	l := e.use(key)
	is := result{State: l.state(), origin: key.Name, leaf: l}
	if is.Status == cache.Present {
		is.aliasOf = is.Resource.OwnName()
	}
	is.Previous = nil
	if is.Status == cache.Failed {
		is.Err = e.withPath(is.Err, path, key.Name)
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
	return e.followRedirect(key.Name, &is, to, key.TypeURL, path)
}

// use returns the leaf of a key. The lookup watches the leaf until an evaluation no longer
// uses it.
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
func (e *evaluation) followRedirect(from string, is *result, to urn.URL, typeURL string, path []string) result {
	path = append(slices.Clone(path), from)
	if len(path) > e.resolver.depth {
		return e.tooDeep(path)
	}
	found := e.lookUpURL(to, typeURL, path)
	found.aliasOf = is.aliasOf // the client does not know the target's name
	found.unreachable, found.withinGrace = found.unreachable || is.unreachable, found.withinGrace || is.withinGrace
	if found.Status == cache.Present && found.Err == nil {
		found.Err = is.Err // the origin failed to send a newer redirect
	}
	return found
}

func (e *evaluation) tooDeep(path []string) result {
	return failure(codes.FailedPrecondition, "more than %d redirects and alternatives in a row: %s", e.resolver.depth, joinPath(path))
}

// lookUpEntry evaluates a URL with an entry directive.
func (e *evaluation) lookUpEntry(u urn.URL, entry, typeURL string, path []string) result {
	name := entryName(u.Key().Name, entry)
	requested := xdstype.Message(typeURL)
	if u.Key().Type != requested+"Collection" {
		return failure(codes.InvalidArgument, "%s is an entry of a %s, want one of a %sCollection", name, u.Key().Type, requested)
	}
	if at := slices.Index(path, name); at >= 0 {
		return e.loopError(path[at:])
	}
	is := e.lookUpName(u.Key(), xdstype.Prefix+u.Key().Type, path)
	if is.Status != cache.Present {
		return is
	}
	found := is.list().entry(entry)
	switch {
	case found == nil:
		return is.noEntry(entry)
	case found.err != nil:
		is.State = cache.State{Status: cache.Failed, Err: found.err}
		return is
	case found.locator != urn.URL{} && e.start.passRedirects:
		is.Resource = is.leaf.inlineRedirect(found)
		is.origin = entryName(is.origin, entry)
		return is
	case found.locator != urn.URL{}:
		return e.followRedirect(name, &is, found.locator, typeURL, path)
	case xdstype.Message(found.typeURL) != requested:
		return failure(codes.InvalidArgument, "%s has type %s, want %s", name, xdstype.Message(found.typeURL), requested)
	}
	is.Resource = is.leaf.inline(found)
	is.origin = entryName(is.origin, entry)
	return is
}

// choose evaluates a URL that has an alternative.
func (e *evaluation) choose(u, alt urn.URL, typeURL string, path []string) result {
	first := e.lookUpPrimary(u, typeURL, path)
	c := e.choice(u)
	policy := e.resolver.names.Policy(u.Key().Authority)
	lost, late := first.unreachable, false
	if policy.NotFound && !lost {
		lost, late = e.missing(c, &first)
	}
	e.evaluateAgainAt(c.decide(lost, first.Status != cache.Requested && !first.withinGrace, policy.Hysteresis, e.now))
	if !c.wantsAlt && !late {
		return first
	}
	path = append(path[:len(path):len(path)], altMark+alt.Key().Name)
	var second result
	if len(path) > e.resolver.depth {
		second = e.tooDeep(path)
	} else {
		second = e.lookUpURL(alt, typeURL, path)
	}
	if !c.wantsAlt {
		return first // the alternative is only requested
	}
	// If both are out of date, clients keep the one that they have.
	stale := second.unreachable && first.Status == cache.Present && !c.usesAlt
	switch c.usesAlt = second.Status == cache.Present && !stale; {
	case c.usesAlt:
		return second
	case first.Status == cache.Present:
		return first
	case second.Status == cache.Requested, first.Status == cache.Requested:
		return result{State: cache.State{Status: cache.Requested}}
	case first.Status == cache.Absent && (second.Status == cache.Absent || !lost):
		return first
	}
	return first.bothFailed(alt, &second)
}

// noEntry returns the result for a list collection without the entry.
func (r *result) noEntry(entry string) result {
	is := *r
	is.State = cache.State{Status: cache.Absent, Answer: r.Answer, Err: &cache.Error{
		Code: codes.NotFound, Message: "the list collection " + r.origin + " has no entry " + entry,
	}}
	if err := r.list().err; err != nil {
		// The entry may be in the unreadable part.
		is.State = cache.State{Status: cache.Failed, Err: err}
	}
	return is
}
