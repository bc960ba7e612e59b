package collections

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// TP1: "List collections". A list collection as a set: its members are followed, and
// collections in it expanded.

// listSource are the members of a list collection.
type listSource struct {
	*setting
	to     *part
	url    urn.URL
	passed []string
	follow *follow
	question

	union *union
	aim   *list              // that is to be expanded
	list  *list              // that was expanded last, or is being so
	byID  map[string]*part   // those of list
	stays map[string]string  // see stay
	going map[*part]struct{} // those of lists before
	is    condition
	// expansion is the one that is not over yet, and queued says that aim is the next.
	expansion *expansion
	queued    bool
}

func newListSource(s *setting, to *part, u urn.URL, passed []string) *listSource {
	s.collections++
	l := &listSource{setting: s, to: to, url: u, passed: passed, question: s.ask(), byID: map[string]*part{}}
	l.union = newUnion(s, l)
	l.follow = s.Resolver.follow(target{
		typeURL: s.typeURL + "Collection", params: s.params, url: bare(u), passed: passed,
	}, s, l.changed)
	// Whether its authority can be reached is looked at as with an alternative.
	l.follow.reaches = true
	s.choosing[l.follow] = struct{}{}
	return l
}

// bare is a URL without its directives.
func bare(u urn.URL) urn.URL {
	b, _ := urn.ParseURL(u.Key().Name) // parsed before
	return b
}

// changed takes another state of the collection. What cannot be had stays as it was.
func (l *listSource) changed() {
	is := &l.follow.result
	switch is.Status {
	case cache.Present:
		if list := is.list(); list != l.aim {
			l.expand(list)
			if list.err != nil {
				l.bad(list.err)
			}
		}
	case cache.Absent:
		l.expand(&list{})
		l.aim = nil
	}
	l.settle()
}

// settle is for when the state is another, or what there is of it is.
func (l *listSource) settle() {
	if l.expansion != nil || l.queued {
		return
	}
	if l.follow.result.Status != cache.Requested {
		l.over()
	}
	l.turned()
}

// elected implements sink.
func (l *listSource) elected(key string, _, is offer, again bool) { l.to.offer(key, is, again) }

// turned implements sink.
func (l *listSource) turned() {
	if l.expansion != nil || l.queued {
		return
	}
	from, is := &l.follow.result, l.is
	switch {
	case from.Status == cache.Present && l.union.open == 0, from.Status == cache.Absent:
		is = condition{status: from.Status, partial: l.union.lacking > 0}
	case from.Status == cache.Present && !is.known():
		is = condition{}
	case from.Status == cache.Failed && !is.known():
		is = condition{status: cache.Failed, err: from.Err}
	}
	// What is asked for is no answer yet: an alternative stays until there is one.
	is.down, is.shaky = from.down, from.shaky || from.Status == cache.Requested
	if l.union.open == 0 {
		l.leave()
	}
	if l.is != is {
		l.is = is
		l.to.turned()
	}
}

func (l *listSource) condition() condition { return l.is }

func (l *listSource) offered(yield func(string)) { l.union.keys(yield) }

func (l *listSource) refresh() {
	l.follow.refresh()
	l.union.refresh()
}

func (l *listSource) close() {
	l.untodo(l)
	l.collections--
	l.entries -= len(l.union.parts)
	l.over()
	l.follow.close()
	l.union.close()
}

// bad tells of an entry that is none. It takes no others with it.
func (l *listSource) bad(err *cache.Error) { l.badEntry(l.url.String(), err) }

// expanded is an entry of the list as a source of members.
type expanded struct {
	id    string // the same for what is the same source
	label string
	open  func(*part) source
	given *cache.Resource // of an inline entry
	err   *cache.Error
}

// entry is an entry of a list.
func (l *listSource) entry(of *list, i int) expanded {
	switch e := &of.entries[i]; {
	case e.err != nil:
		return expanded{err: e.err}
	case !e.inline:
		return l.located(e.locator)
	}
	return l.inline(of, i)
}

// located is a locator: of a member, or of another collection.
func (l *listSource) located(u urn.URL) expanded {
	x := expanded{id: u.String(), label: u.String()}
	entry, isEntry := u.Entry()
	name := u.Key().Name
	if isEntry {
		name = entryName(name, entry)
	}
	switch {
	case isCollection(u):
		passed := append(slices.Clone(l.passed), l.url.Key().Name)
		if origin := l.follow.result.origin; origin != l.url.Key().Name {
			passed = append(passed, origin)
			x.id += " by " + origin // another way, on which other names would be loops
		}
		x.open = func(p *part) source { return l.collection(p, u, passed) }
	case l.listing:
		x.give(name, locatorOf(u))
	default:
		x.open = func(p *part) source { return newLocatedSource(l.setting, p, u, name, isEntry) }
	}
	return x
}

// inline is an inline entry. It is called by the name inside its resource: that is how
// clients know it. Without one it is called by its own name in the collection, and an
// anonymous one by its index.
func (l *listSource) inline(of *list, i int) expanded {
	e, collection := &of.entries[i], l.url.Key().Name
	name := fmt.Sprintf("%s#%d", collection, i)
	if e.name != "" {
		name = entryName(collection, e.name)
	}
	x := expanded{label: name}
	redirect := e.locator != urn.URL{}
	if !redirect && e.typeURL != l.typeURL {
		x.err = &cache.Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("entry %d of the list collection: is of type %s, where %s is wanted", i, xdstype.Message(e.typeURL), xdstype.Message(l.typeURL))}
		return x
	}
	if redirect && !l.listing && !l.passes {
		x.id = name + " -> " + e.locator.String()
		x.open = func(p *part) source { return newLocatedSource(l.setting, p, e.locator, name, false) }
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
		if err := l.foreign(of.authority, inner); err != nil {
			x.err = &cache.Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("entry %d of the list collection: %v", i, err)}
			return x
		}
	} else if l.passes {
		r = e.redirect(name)
	}
	key, spelled := l.member(name)
	if l.listing {
		r = e.written(key)
	} else {
		r = named(spelled, "", &result{State: cache.State{Resource: r}, origin: origin})
	}
	x.id = "inline " + key
	x.give(key, r)
	return x
}

// give makes it a member with its content.
func (x *expanded) give(key string, r *cache.Resource) {
	x.given = r
	x.open = func(p *part) source { return newGivenSource(p, key, r) }
}
