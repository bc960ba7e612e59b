package collections

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// TP1: "List collections". The source of a list collection: members are looked up, and
// collections in it are expanded.

// listSource gives the members of a list collection.
type listSource struct {
	*setContext
	to     *input
	url    urn.URL
	passed []string
	lookup *lookup
	pendingQuery

	union     *union
	next      *list               // the newest content
	current   *list               // the content last expanded, or in expansion
	byID      map[string]*input   // inputs of current, by entry id
	lastGood  map[string]string   // ids by entry name, see keepLastGood
	leaving   map[*input]struct{} // of previous lists
	lastState sourceState
	// expansion is the one in progress; queued: next is to be expanded after it.
	expansion *expansion
	queued    bool
}

func newListSource(s *setContext, to *input, u urn.URL, passed []string) *listSource {
	s.collections++
	l := &listSource{setContext: s, to: to, url: u, passed: passed, pendingQuery: s.beginQuery(), byID: map[string]*input{}}
	l.union = newUnion(s, l)
	l.lookup = s.Resolver.newLookup(target{
		typeURL: s.typeURL + "Collection", params: s.params, url: bare(u), path: passed,
	}, s, l.changed)
	// An alternative of the collection depends on the reachability of its authority.
	l.lookup.needsReachability = true
	s.choosing[l.lookup] = struct{}{}
	return l
}

// bare returns a URL without its directives.
func bare(u urn.URL) urn.URL {
	b, _ := urn.ParseURL(u.Key().Name) // parsed before
	return b
}

// changed takes a new result of the collection's lookup. A failure leaves the members as
// they are.
func (l *listSource) changed() {
	is := &l.lookup.result
	switch is.Status {
	case cache.Present:
		if list := is.list(); list != l.next {
			l.expand(list)
			if list.err != nil {
				l.badEntry(list.err)
			}
		}
	case cache.Absent:
		l.expand(&list{})
		l.next = nil
	}
	l.updateState()
}

// updateState ends the query if the collection has an answer, and updates the state.
func (l *listSource) updateState() {
	if l.expansion != nil || l.queued {
		return
	}
	if l.lookup.result.Status != cache.Requested {
		l.endQuery()
	}
	l.stateChanged()
}

// elected implements sink.
func (l *listSource) winnerChanged(key string, _, is candidate, renewed bool) {
	l.to.set(key, is, renewed)
}

// turned implements sink.
func (l *listSource) stateChanged() {
	if l.expansion != nil || l.queued {
		return
	}
	from, is := &l.lookup.result, l.lastState
	switch {
	case from.Status == cache.Present && l.union.unknown == 0, from.Status == cache.Absent:
		is = sourceState{status: from.Status, partial: l.union.incomplete > 0}
	case from.Status == cache.Present && !is.known():
		is = sourceState{}
	case from.Status == cache.Failed && !is.known():
		is = sourceState{status: cache.Failed, err: from.Err}
	}
	// Without an answer an alternative stays in use.
	is.unreachable, is.withinGrace = from.unreachable, from.withinGrace || from.Status == cache.Requested
	if l.union.unknown == 0 {
		l.removeLeaving()
	}
	if l.lastState != is {
		l.lastState = is
		l.to.stateChanged()
	}
}

func (l *listSource) state() sourceState { return l.lastState }

func (l *listSource) keys(yield func(string)) { l.union.keys(yield) }

func (l *listSource) refresh() {
	l.lookup.refresh()
	l.union.refresh()
}

func (l *listSource) close() {
	l.unschedule(l)
	l.collections--
	l.entries -= len(l.union.inputs)
	l.endQuery()
	l.lookup.close()
	l.union.close()
}

// badEntry reports an entry that cannot be used. The other entries stay.
func (l *listSource) badEntry(err *cache.Error) { l.reportBadEntry(l.url.String(), err) }

// member is an entry of the list as a source of members.
type member struct {
	id       string // equal for entries with the same source
	label    string
	open     func(*input) source
	resource *cache.Resource // of an entry with known content
	err      *cache.Error
}

// entry returns an entry of a list as a member.
func (l *listSource) entry(of *list, i int) member {
	switch e := &of.entries[i]; {
	case e.err != nil:
		return member{err: e.err}
	case !e.inline:
		return l.locatorEntry(e.locator)
	}
	return l.inlineEntry(of, i)
}

// locatorEntry returns a locator of a resource or of another collection as a member.
func (l *listSource) locatorEntry(u urn.URL) member {
	x := member{id: u.String(), label: u.String()}
	entry, isEntry := u.Entry()
	name := u.Key().Name
	if isEntry {
		name = entryName(name, entry)
	}
	switch {
	case isCollection(u):
		passed := append(slices.Clone(l.passed), l.url.Key().Name)
		if origin := l.lookup.result.origin; origin != l.url.Key().Name {
			passed = append(passed, origin)
			x.id += " via " + origin // on another path other names are loops
		}
		x.open = func(p *input) source { return l.newCollectionSource(p, u, passed) }
	case l.asEntries:
		x.fix(name, locatorOf(u))
	default:
		x.open = func(p *input) source { return newLocatorSource(l.setContext, p, u, name, isEntry) }
	}
	return x
}

// inlineEntry returns an inline entry as a member. Its name is the name inside the resource,
// by which clients know it; else the entry's name in the collection; else its index there.
func (l *listSource) inlineEntry(of *list, i int) member {
	e, collection := &of.entries[i], l.url.Key().Name
	name := fmt.Sprintf("%s#%d", collection, i)
	if e.name != "" {
		name = entryName(collection, e.name)
	}
	x := member{label: name}
	redirect := e.locator != urn.URL{}
	if !redirect && e.typeURL != l.typeURL {
		x.err = &cache.Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("entry %d of the list collection has type %s, want %s", i, xdstype.Message(e.typeURL), xdstype.Message(l.typeURL))}
		return x
	}
	if redirect && !l.asEntries && !l.passRedirects {
		x.id = name + " -> " + e.locator.String()
		x.open = func(p *input) source { return newLocatorSource(l.setContext, p, e.locator, name, false) }
		return x
	}
	var r *cache.Resource
	origin := name
	if !redirect {
		r = e.resource(name)
		inner := r.Inner()
		if inner != "" {
			name = inner
		}
		if err := l.checkAuthority(of.authority, inner); err != nil {
			x.err = &cache.Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("entry %d of the list collection: %v", i, err)}
			return x
		}
	} else if l.passRedirects {
		r = e.redirect(name)
	}
	key, spelled := l.memberKey(name)
	if l.asEntries {
		r = e.encode(key)
	} else {
		r = named(spelled, "", &result{State: cache.State{Resource: r}, origin: origin})
	}
	x.id = "inline " + key
	x.fix(key, r)
	return x
}

// fix gives the member a known content.
func (x *member) fix(key string, r *cache.Resource) {
	x.resource = r
	x.open = func(p *input) source { return newFixedSource(p, key, r) }
}
