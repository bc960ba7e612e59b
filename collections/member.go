package collections

import (
	"cmp"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// Single members: of which only the place is known, and that are followed; and those
// that are given with their content.

// followed is a member whose content is that of a follow.
type followed struct {
	*setting
	follow  *follow
	to      *part
	key     string // under which it is offered
	spelled string // as clients are to see it
	home    string // see named
	last    offer
	from    result // that last was made of
	known   bool
	knows   func() // called when it is known, and when lacks is another
	lacks   bool   // it cannot be had, and by which name is not known
	found   func() // called once when it is found, or does not exist; may be nil
	// byInner has it called by the name inside it, if it has one; own is what it is
	// called else, if it is called as another is that it took the place of.
	byInner bool
	own     string
}

// begin begins the following. bad, if not nil, is why there is nothing to follow.
func (m *followed) begin(s *setting, to *part, name string, knows func(), at target, bad error) {
	m.setting, m.to, m.knows = s, to, knows
	m.key, m.spelled = s.member(name)
	if s.renameTo == "" {
		m.home = m.key
	}
	if bad != nil {
		m.take(&result{State: cache.State{Status: cache.Failed, Err: &cache.Error{Code: codes.InvalidArgument, Message: bad.Error()}}})
		return
	}
	m.follow = s.Resolver.follow(at, s, func() { m.take(&m.follow.result) })
	if m.last == (offer{}) {
		m.to.offer(m.key, claim, false)
	}
}

// take takes what it has come to. What cannot be had stays as it was.
func (m *followed) take(is *result) {
	if is.Status == cache.Requested {
		return
	}
	next, beat := offer{}, false
	inner := ""
	if m.byInner && is.Status == cache.Present {
		var err error
		if inner, err = m.innerName(is); err != nil {
			rejected := failure(codes.InvalidArgument, "%s: %v", m.entry(), err)
			m.badEntry(m.follow.start.url.String(), rejected.Err)
			is = &rejected
		}
	}
	switch is.Status {
	case cache.Present:
		m.call(cmp.Or(inner, m.own))
		m.own = ""
		next = offer{m.last.resource, is.Err}
		beat = is.Beats != m.from.Beats
		if is.Resource != m.from.Resource || is.origin != m.from.origin || next.resource == nil {
			next.resource = named(m.spelled, m.home, is)
		}
		m.from = *is
	case cache.Failed:
		next = offer{m.last.resource, is.Err}
	}
	m.last = next
	m.to.offer(m.key, next, beat)
	lacks := m.byInner && next.resource == nil && next.err != nil && next.err.Open()
	if turned := lacks != m.lacks; !m.known || turned {
		m.known, m.lacks = true, lacks
		m.knows()
	}
	if m.found != nil && is.Status != cache.Failed {
		m.found()
		m.found = nil
	}
}

// innerName is the name that an inline entry that was found has inside where it was
// written, empty if none was, or it has none. It may be one that is not to be believed.
func (m *followed) innerName(is *result) (string, error) {
	_, name, ok := strings.Cut(is.origin, entryName("", ""))
	if !ok || is.leaf == nil {
		return "", nil
	}
	of := is.leaf.listed
	e := of.entry(name)
	if e == nil {
		return "", nil
	}
	inner := e.resource(is.origin).Inner()
	return inner, m.foreign(of.authority, inner)
}

// call gives it another name, unless that is empty.
func (m *followed) call(name string) {
	if name == "" {
		return
	}
	key, spelled := m.member(name)
	if key != m.key {
		m.to.withdraw(m.key)
		m.last = offer{}
	}
	m.key, m.spelled, m.home = key, spelled, ""
}

// follows has it called as what it takes the place of, until it is found.
func (m *followed) follows(key, spelled, home string) {
	if key != m.key {
		m.own = m.spelled
		m.to.withdraw(m.key)
		m.to.offer(key, claim, false)
	}
	m.key, m.spelled, m.home = key, spelled, home
}

// entry is the name of the entry that it is to be found in.
func (m *followed) entry() string {
	u := m.follow.start.url
	entry, _ := u.Entry()
	return entryName(u.Key().Name, entry)
}

func (m *followed) refresh() {
	if m.follow != nil {
		m.follow.refresh()
	}
}

func (m *followed) close() {
	if m.follow != nil {
		m.follow.close()
	}
}

// locatedSource is a member that a list collection has a locator of, or that is a
// redirect in one.
type locatedSource struct{ followed }

// newLocatedSource makes the source of the member at u, which is called name; byInner
// as in followed.
func newLocatedSource(s *setting, to *part, u urn.URL, name string, byInner bool) *locatedSource {
	m := &locatedSource{}
	m.byInner = byInner
	m.begin(s, to, name, to.turned, target{typeURL: s.typeURL, params: s.params, url: u, passes: s.passes}, nil)
	return m
}

func (m *locatedSource) condition() condition {
	c := conditionOf(m.known)
	c.partial = m.lacks
	return c
}

func (m *locatedSource) offered(yield func(string)) { yield(m.key) }

func conditionOf(known bool) condition {
	if known {
		return condition{status: cache.Present}
	}
	return condition{}
}

// givenSource is a member with its content, nil if it has none.
type givenSource struct {
	to       *part
	key      string
	resource *cache.Resource
}

func newGivenSource(to *part, key string, r *cache.Resource) *givenSource {
	g := &givenSource{to: to, key: key}
	g.give(r)
	return g
}

// give gives another content.
func (g *givenSource) give(r *cache.Resource) {
	if g.resource != nil && r != nil && g.resource.Hash() == r.Hash() && g.resource.Version() == r.Version() && g.resource.Name() == r.Name() {
		return
	}
	g.resource = r
	g.to.offer(g.key, offer{resource: r}, false)
}

func (g *givenSource) condition() condition       { return conditionOf(true) }
func (g *givenSource) offered(yield func(string)) { yield(g.key) }
func (g *givenSource) refresh()                   {}
func (g *givenSource) close()                     {}
