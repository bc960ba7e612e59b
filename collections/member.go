package collections

import (
	"cmp"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// Sources of single members: members that are looked up, and members with known content.

// memberLookup is a member whose content is the result of a lookup.
type memberLookup struct {
	*setContext
	lookup     *lookup
	to         *input
	key        string // of its candidate
	spelled    string // its name as clients see it
	home       string // see named
	last       candidate
	from       result // the result from which last was made
	known      bool   // the lookup has had a result
	found      bool   // it no longer counts as setContext.unfound
	onChange   func() // called when known, incomplete or stale has changed
	incomplete bool   // the member is unavailable, and its name unknown
	stale      bool   // its resource is stale
	onFound    func() // called once when the member is found or does not exist; may be nil
	// namedInside: the member takes its name from the resource, if that has a name inside.
	// ownName is its other name, while it has the name of a member that it replaces.
	namedInside bool
	ownName     string
}

// start begins the lookup. If bad is not nil, the member fails with it, and there is no lookup.
func (m *memberLookup) start(s *setContext, to *input, name string, knows func(), at target, bad error) {
	m.setContext, m.to, m.onChange = s, to, knows
	m.key, m.spelled = s.memberKey(name)
	if s.renameTo == "" {
		m.home = m.key
	}
	if bad != nil {
		m.update(&result{State: cache.State{Status: cache.Failed, Err: &cache.Error{Code: codes.InvalidArgument, Message: bad.Error()}}})
		return
	}
	m.unfound++
	m.noteBusy()
	m.lookup = s.Resolver.newLookup(at, s, func() { m.update(&m.lookup.result) })
	if m.last == (candidate{}) {
		m.to.set(m.key, pendingCandidate, false)
	}
}

// update processes a result of the lookup. After a failure, the last good resource stays.
func (m *memberLookup) update(is *result) {
	if is.Status == cache.Requested {
		return
	}
	m.find()
	next, beat := candidate{}, false
	inner := ""
	if m.namedInside && is.Status == cache.Present {
		var err error
		if inner, err = m.innerName(is); err != nil {
			rejected := failure(codes.InvalidArgument, "%s: %v", m.entry(), err)
			m.reportBadEntry(m.lookup.start.url.String(), rejected.Err)
			is = &rejected
		}
	}
	switch is.Status {
	case cache.Absent:
		m.noteAnswer(is.Answer)
	case cache.Present:
		m.rename(cmp.Or(inner, m.ownName))
		m.ownName = ""
		next = candidate{m.last.resource, is.Err}
		beat = is.Heartbeats != m.from.Heartbeats
		if is.Resource != m.from.Resource || is.origin != m.from.origin || next.resource == nil {
			next.resource = named(m.spelled, m.spelled, m.home, is)
		}
		m.from = *is
	case cache.Failed:
		next = candidate{m.last.resource, is.Err}
	}
	m.last = next
	m.to.set(m.key, next, beat)
	incomplete := m.namedInside && next.resource == nil && next.err != nil && next.err.Inconclusive()
	stale := is.Status == cache.Present && is.Stale
	if changed := incomplete != m.incomplete || stale != m.stale; !m.known || changed {
		m.known, m.incomplete, m.stale = true, incomplete, stale
		m.onChange()
	}
	if m.onFound != nil && is.Status != cache.Failed {
		m.onFound()
		m.onFound = nil
	}
}

// find records that the lookup has a result, or is not needed any more.
func (m *memberLookup) find() {
	if m.lookup != nil && !m.found {
		m.found = true
		m.unfound--
		m.lessBusy()
	}
}

// innerName returns the name inside the resource of an inline entry, empty if there is none.
// An error means that the authority may not send a resource with that name.
func (m *memberLookup) innerName(is *result) (string, error) {
	_, name, ok := strings.Cut(is.origin, entryName("", ""))
	if !ok || is.leaf == nil {
		return "", nil
	}
	of := is.leaf.parsed
	e := of.entry(name)
	if e == nil {
		return "", nil
	}
	inner := e.resource(is.origin).Inner()
	return inner, m.checkAuthority(of.authority, inner)
}

// rename gives the member another name, unless the name is empty.
func (m *memberLookup) rename(name string) {
	if name == "" {
		return
	}
	key, spelled := m.memberKey(name)
	if key != m.key {
		m.to.withdraw(m.key)
		m.last = candidate{}
	}
	m.key, m.spelled, m.home = key, spelled, ""
}

// takePlaceOf gives the member the name of the member that it replaces, until its resource is found.
func (m *memberLookup) takePlaceOf(key, spelled, home string) {
	if key != m.key {
		m.ownName = m.spelled
		m.to.withdraw(m.key)
		m.to.set(key, pendingCandidate, false)
	}
	m.key, m.spelled, m.home = key, spelled, home
}

// entry returns the name of the entry that the lookup leads to.
func (m *memberLookup) entry() string {
	u := m.lookup.start.url
	entry, _ := u.Entry()
	return entryName(u.Key().Name, entry)
}

func (m *memberLookup) refresh() {
	if m.lookup != nil {
		m.lookup.refresh()
	}
}

func (m *memberLookup) refuse(_ string, sent uint32) {
	if m.lookup != nil {
		m.lookup.refuse(sent)
	}
}

func (m *memberLookup) close() {
	if m.find(); m.lookup != nil {
		m.lookup.close()
	}
}

// locatorSource is a member that a list collection locates, or an inline entry that is a
// redirect.
type locatorSource struct{ memberLookup }

// newLocatorSource returns the source of the member at u with a name. byInner is namedInside of
// memberLookup.
func newLocatorSource(s *setContext, to *input, u urn.URL, name string, byInner bool) *locatorSource {
	m := &locatorSource{}
	m.namedInside = byInner
	m.start(s, to, name, to.stateChanged, target{typeURL: s.typeURL, params: s.params, side: s.side, url: u, passRedirects: s.passRedirects}, nil)
	return m
}

func (m *locatorSource) state() sourceState {
	c := stateOf(m.known)
	c.partial, c.stale = m.incomplete, m.stale
	return c
}

func (m *locatorSource) keys(yield func(string)) { yield(m.key) }

func stateOf(known bool) sourceState {
	if known {
		return sourceState{status: cache.Present}
	}
	return sourceState{}
}

// fixedSource is a member with known content, which is nil if it has no resource.
type fixedSource struct {
	to       *input
	key      string
	resource *cache.Resource
}

func newFixedSource(to *input, key string, r *cache.Resource) *fixedSource {
	g := &fixedSource{to: to, key: key}
	g.set(r)
	return g
}

// set replaces the content.
func (g *fixedSource) set(r *cache.Resource) {
	if g.resource != nil && r != nil && g.resource.Hash() == r.Hash() && g.resource.Version() == r.Version() && g.resource.Name() == r.Name() {
		return
	}
	g.resource = r
	g.to.set(g.key, candidate{resource: r}, false)
}

func (g *fixedSource) state() sourceState      { return stateOf(true) }
func (g *fixedSource) keys(yield func(string)) { yield(g.key) }
func (g *fixedSource) refresh()                {}
func (g *fixedSource) refuse(string, uint32)   {}
func (g *fixedSource) close()                  {}
