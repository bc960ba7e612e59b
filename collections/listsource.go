package collections

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "List collections". The source of a list collection: its members are looked up, and
// collections in it are expanded.

// listSource gives the members of a list collection.
type listSource struct {
	*setContext
	to     *input
	url    urn.URL
	path   []string
	lookup *lookup
	pendingQuery

	union     *union
	next      *list               // the newest content
	current   *list               // the content last expanded, or in expansion
	byID      map[string]*input   // inputs of current, by entry id
	lastGood  map[string]string   // ids by entry name, see keepLastGood
	leaving   map[*input]struct{} // of previous lists
	lastFrom  cache.Answer        // the answer to which the newest list belongs
	lastState sourceState
	// expansion is the one in progress, nil if there is none. queued: next has to be expanded
	// after it.
	expansion *expansion
	queued    bool
}

func newListSource(s *setContext, to *input, u urn.URL, path []string) *listSource {
	s.collections++
	l := &listSource{setContext: s, to: to, url: u, path: path, pendingQuery: s.beginQuery(), byID: map[string]*input{}}
	l.union = newUnion(s, l)
	l.lookup = s.Resolver.newLookup(target{
		typeURL: s.typeURL + "Collection", params: s.params, side: s.side, url: bare(u), path: path,
	}, s, l.changed)
	// An alternative of the collection depends on the reachability of its authority.
	l.lookup.needsReachability = true
	s.choosing[l.lookup] = struct{}{}
	return l
}

// changed processes a new result of the collection's lookup. A failure does not change the
// members.
func (l *listSource) changed() {
	is := &l.lookup.result
	switch is.Status {
	case cache.Present:
		if list := is.list(); list != l.next {
			l.lastFrom = is.Answer
			l.expand(list)
			if list.err != nil {
				l.badEntry(list.err)
			}
		}
	case cache.Absent:
		l.lastFrom = is.Answer
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

// winnerChanged implements sink.
func (l *listSource) winnerChanged(key string, was, is candidate, renewed bool) {
	if was.resource != nil && is == (candidate{}) && !l.ofGlob {
		l.of = max(l.of, l.to.available)
	}
	l.to.set(key, is, renewed)
}

// stateChanged implements sink.
func (l *listSource) stateChanged() {
	if l.expansion != nil || l.queued {
		return
	}
	from, is := &l.lookup.result, l.lastState
	switch {
	case from.Status == cache.Present && l.union.unknown == 0, from.Status == cache.Absent:
		is = sourceState{status: from.Status, partial: l.union.incomplete > 0, stale: from.Stale || l.union.stale > 0}
	case from.Status == cache.Present && !is.known():
		is = sourceState{}
	case from.Status == cache.Failed && !is.known():
		is = sourceState{status: cache.Failed, err: from.Err}
	}
	// While there is no answer, an alternative stays in use.
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

func (l *listSource) refuse(key string, sent uint32) { l.union.refuse(key, sent) }

func (l *listSource) close() {
	l.unschedule(l)
	delete(l.leavers, l)
	l.collections--
	l.entries -= len(l.union.inputs)
	l.endQuery()
	l.lookup.close()
	l.union.close()
}

// badEntry reports an entry that cannot be used.
func (l *listSource) badEntry(err *cache.Error) { l.reportBadEntry(l.url.String(), err) }

// member is an entry of the list as a source of members.
type member struct {
	id       string // equal for entries with the same source
	label    string // its name in logs
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
		path := append(slices.Clone(l.path), l.url.Key().Name)
		if origin := l.lookup.result.origin; origin != l.url.Key().Name {
			path = append(path, origin)
			x.id += " via " + origin // on another path, other names are loops
		}
		x.open = func(p *input) source { return l.newCollectionSource(p, u, path) }
	case l.asEntries:
		x.fix(name, locatorOf(u))
	default:
		x.open = func(p *input) source { return newLocatorSource(l.setContext, p, u, name, isEntry) }
	}
	return x
}

// inlineEntry returns an inline entry as a member. The member's name is the name inside the
// resource, by which clients know it. Without one, it is made of the collection's name and the
// entry's name, or the entry's index.
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
		r = named(spelled, spelled, "", &result{State: cache.State{Resource: r}, origin: origin})
	}
	x.id = "inline " + key
	x.fix(key, r)
	return x
}

// fix gives the member a known key and content.
func (x *member) fix(key string, r *cache.Resource) {
	x.resource = r
	x.open = func(p *input) source { return newFixedSource(p, key, r) }
}

// expansion is a transition, in progress, from one version of a list to the next. Entries in
// both versions keep their sources. A list may be long, so a transition may take several rounds.
type expansion struct {
	nextEntry   int                      // index of the next entry
	unmatched   map[string]*input        // inputs of the previous list, so far not found in the new one
	lastGood    map[string]string        // listSource.lastGood of the previous list
	previous    *list                    // the previous list
	ranks       []ranked                 // final ranks of inputs
	copies      map[string]int           // number of further equal inline entries, by id
	namedInside map[string]*memberLookup // see lookupsNamedInside, nil until needed
}

type ranked struct {
	input *input
	rank  int
}

// step implements step: it begins or continues an expansion.
func (l *listSource) step(time.Time) {
	if l.expansion == nil {
		l.queued = false
		l.beginExpansion()
	} else {
		l.continueExpansion()
	}
	l.updateState()
}

func (l *listSource) due() time.Time { return time.Time{} }

// expand makes another list the content, after an expansion in progress.
func (l *listSource) expand(next *list) {
	l.next = next
	if l.expansion == nil && !l.queued {
		l.beginExpansion()
		return
	}
	l.queued = true
}

func (l *listSource) beginExpansion() {
	next := l.next
	if next == nil {
		next = &list{}
	}
	l.expansion = &expansion{unmatched: l.byID, lastGood: l.lastGood, previous: l.current}
	l.byID, l.lastGood, l.current = make(map[string]*input, len(next.entries)), nil, next
	l.continueExpansion()
}

// continueExpansion adds entries as far as the budget allows. Until the expansion is complete, new
// entries rank after those of the previous list, so no entry replaces another only for a moment.
func (l *listSource) continueExpansion() {
	x := l.expansion
	for ; x.nextEntry < len(l.current.entries); x.nextEntry++ {
		if l.remaining() == 0 {
			l.schedule(l)
			return
		}
		l.spend()
		l.addEntry(x, x.nextEntry)
	}
	l.completeExpansion(x)
	l.expansion = nil
	if l.queued {
		l.schedule(l)
	}
}

// arriving is the rank of new entries during an expansion.
const arriving = leaving - 1

// addEntry makes an entry an input.
func (l *listSource) addEntry(x *expansion, i int) {
	e := l.entry(l.current, i)
	if e.err != nil {
		l.badEntry(e.err)
		l.keepLastGood(x, i)
		return
	}
	if l.byID[e.id] != nil {
		if e.resource == nil {
			return // the same locator twice is one member
		}
		if x.copies == nil {
			x.copies = map[string]int{}
		}
		x.copies[e.id]++
		e.id = fmt.Sprintf("%s (%d)", e.id, x.copies[e.id]+1)
	}
	p := x.unmatched[e.id]
	if p != nil {
		delete(x.unmatched, e.id)
		l.place(x, e.id, p, i)
		if given, ok := p.source.(*fixedSource); ok {
			given.set(e.resource)
		}
		return
	}
	if l.entries >= l.sets.maxEntries {
		l.badEntry(&cache.Error{Code: codes.ResourceExhausted, Message: fmt.Sprintf("entry %d of the list collection: the collections of one set have more than %d entries together", i, l.sets.maxEntries)})
		return
	}
	l.entries++
	p = l.union.add(e.label, arriving, e.open)
	l.place(x, e.id, p, i)
	m, ok := p.source.(*locatorSource)
	switch {
	case !ok:
	case m.namedInside:
		if x.namedInside == nil {
			x.namedInside = lookupsNamedInside(l.union.inputs)
		}
		if was := x.namedInside[m.entry()]; was != nil {
			m.takePlaceOf(was.key, was.spelled, was.home)
		}
	default:
		was := x.unmatched[l.idBefore(x, l.current.entries[i].name)]
		if was == nil {
			break
		}
		switch was := was.source.(type) {
		case *fixedSource:
			if was.resource != nil {
				m.takePlaceOf(was.key, was.resource.Name(), "")
			}
		case *locatorSource: // it may have the name of what it replaced
			m.takePlaceOf(was.key, was.spelled, was.home)
		}
	}
}

// place records the input of an entry.
func (l *listSource) place(x *expansion, id string, p *input, rank int) {
	l.byID[id] = p
	x.ranks = append(x.ranks, ranked{p, rank})
}

// completeExpansion ends an expansion. Entries that are not in the new list are removed
// when the new ones are known.
func (l *listSource) completeExpansion(x *expansion) {
	for _, r := range x.ranks {
		r.input.rank = r.rank
	}
	if l.current.err != nil { // the rest of the list is unreadable: keep the previous entries
		maps.Copy(l.byID, x.unmatched)
		clear(x.unmatched)
	}
	for _, p := range x.unmatched {
		l.spend()
		l.noteAnswer(l.lastFrom)
		if !p.known {
			l.remove(p)
			continue
		}
		p.rank = leaving + p.rank
		if l.leaving == nil {
			l.leaving = map[*input]struct{}{}
			if l.leavers == nil {
				l.leavers = map[*listSource]struct{}{}
			}
			l.leavers[l] = struct{}{}
		}
		l.leaving[p] = struct{}{}
	}
	l.union.decideAgain(false)
}

// removeLeaving removes the entries that are no longer in the list.
func (l *listSource) removeLeaving() {
	for p := range l.leaving {
		l.noteAnswer(l.lastFrom)
		l.spend()
		l.remove(p)
	}
	l.leaving = nil
	delete(l.leavers, l)
}

// removeReplaced removes those of the leaving entries whose only member is replaced.
func (l *listSource) removeReplaced(isReplaced func(key string, r *cache.Resource) bool) {
	for p := range l.leaving {
		key := ""
		switch s := p.source.(type) {
		case *fixedSource:
			key = s.key
		case *locatorSource:
			key = s.key
		}
		if r := p.candidateOf(key).resource; r == nil || !isReplaced(key, r) {
			continue
		}
		l.noteAnswer(l.lastFrom)
		l.spend()
		delete(l.leaving, p)
		l.remove(p)
	}
	if len(l.leaving) == 0 {
		l.leaving = nil
		delete(l.leavers, l)
	}
}

func (l *listSource) remove(p *input) {
	l.entries--
	l.union.remove(p)
}

// lookupsNamedInside returns, by the name of the entry, those of the inputs' lookups that are known
// and take the member's name from the resource.
func lookupsNamedInside(inputs []*input) map[string]*memberLookup {
	all := map[string]*memberLookup{}
	for _, p := range inputs {
		if m, ok := p.source.(*locatorSource); ok && m.namedInside && m.known {
			all[m.entry()] = &m.memberLookup
		}
	}
	return all
}

// idBefore returns the id that the inline entry with a name had in the previous list, empty
// if there was none.
func (l *listSource) idBefore(x *expansion, name string) (id string) {
	id, ok := x.lastGood[name]
	if !ok && name != "" && x.previous != nil {
		if was := x.previous.entry(name); was != nil && was.err == nil {
			id = l.inlineEntry(x.previous, x.previous.named[name]).id
		}
	}
	return id
}

// keepLastGood makes a bad entry with a name keep its last good content.
func (l *listSource) keepLastGood(x *expansion, i int) {
	name := l.current.entries[i].name
	id := l.idBefore(x, name)
	p := x.unmatched[id]
	if p == nil {
		return
	}
	delete(x.unmatched, id)
	l.place(x, id, p, i)
	if l.lastGood == nil {
		l.lastGood = map[string]string{}
	}
	l.lastGood[name] = id
}
