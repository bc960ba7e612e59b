package collections

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// Members of a glob that are redirects. Until the target of one is known, clients see the
// member's value before the redirect.

// redirectMember is a member of a glob that is a redirect.
type redirectMember struct {
	memberLookup
	url string
	// unknown: it has neither a target nor a value before the redirect.
	unknown bool
}

// redirectMembers is the common state of a glob's redirects.
type redirectMembers struct {
	unknown  int                    // how many are unknown
	expiring cache.Expiries[string] // keys of values before a redirect that have a TTL
}

// followRedirect begins to look up the target of a member. Until it is known the member
// keeps its value before the redirect: the one in this source or, if the member is new
// here, that of the leaf set.
func (g *globSource) followRedirect(key string, m *cache.Member, now time.Time) {
	g.dropRedirect(key)
	if m.Was != nil && g.to.candidateOf(key).resource == nil {
		was := cache.Member{Name: m.Name, Resource: m.Was}
		g.to.set(key, candidate{resource: g.resource(key, &was)}, true)
	}
	r := &redirectMember{url: m.Resource.Redirect()}
	r.last = g.to.candidateOf(key)
	g.redirects[key] = r
	switch shown := r.last.resource; {
	case shown == nil:
		r.unknown = true
		g.unknown++
	case shown.TTL() > 0:
		// The TTL began earlier, so this is late rather than early.
		g.expiring.Set(key, now.Add(shown.TTL()))
	}
	u, err := urn.ParseURL(r.url)
	r.onFound = func() {
		g.set.Found(canonical(m.Name))
		g.expiring.End(key)
	}
	r.start(g.setContext, g.to, m.Name, func() {
		g.markKnown(r)
		g.schedule(g)
	}, target{typeURL: g.typeURL, params: g.params, url: u, path: []string{canonical(m.Name)}}, err)
}

// markKnown records that the state of the set does not wait for a redirect any more.
func (g *globSource) markKnown(r *redirectMember) {
	if r.unknown {
		r.unknown = false
		g.unknown--
	}
}

// expire removes values before a redirect whose TTL has ended. xDS: "TTL".
func (g *globSource) expire(now time.Time) {
	for _, key := range g.expiring.Due(now) {
		r := g.redirects[key]
		r.onFound() // the set forgets the value, too
		r.last = candidate{}
		g.to.withdraw(key)
	}
}

// due returns when the next value expires, zero for never.
func (k *redirectMembers) due() time.Time {
	at, _ := k.expiring.Next()
	return at
}

// earlier returns the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// candidateOf returns the input's candidate for a key.
func (p *input) candidateOf(key string) candidate {
	if c := p.union.members[key]; c != nil {
		return c.candidateOf(p)
	}
	return candidate{}
}
