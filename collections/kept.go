package collections

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// Members of a glob that are redirects, and what they were before. That is what there
// is to show of one until it is known where it leads.

// redirect is a member that is one.
type redirect struct {
	followed
	url string
	// open: there is nothing to show of it yet.
	open bool
}

// kept is what a source knows of redirects of which it is not known where they lead.
type kept struct {
	open     int                    // how many there is nothing to show of
	expiring cache.Expiries[string] // the keys of those that are shown for a time
}

// obey begins to follow a member that is a redirect. What there is to show of it is what
// was there before, here or, if this is new here, in the leaf set.
func (g *globSource) obey(key string, m *cache.Member, now time.Time) {
	g.drop(key)
	if m.Was != nil && g.to.offered(key).resource == nil {
		was := cache.Member{Name: m.Name, Resource: m.Was}
		g.to.offer(key, offer{resource: g.resource(key, &was)}, true)
	}
	r := &redirect{url: m.Resource.Redirect()}
	r.last = g.to.offered(key)
	g.redirects[key] = r
	switch shown := r.last.resource; {
	case shown == nil:
		r.open = true
		g.open++
	case shown.TTL() > 0:
		// It began earlier, so this is late rather than early.
		g.expiring.Set(key, now.Add(shown.TTL()))
	}
	u, err := urn.ParseURL(r.url)
	r.found = func() {
		g.set.Found(canonical(m.Name))
		g.expiring.End(key)
	}
	r.begin(g.setting, g.to, m.Name, func() {
		g.settle(r)
		g.todo(g)
	}, target{typeURL: g.typeURL, params: g.params, url: u, passed: []string{canonical(m.Name)}}, err)
}

// settle notes that a redirect does not keep the others waiting any more.
func (g *globSource) settle(r *redirect) {
	if r.open {
		r.open = false
		g.open--
	}
}

// expire ends what is not to be shown any longer. xDS: "TTL".
func (g *globSource) expire(now time.Time) {
	for _, key := range g.expiring.Due(now) {
		r := g.redirects[key]
		r.found() // as far as what it was before goes
		r.last = offer{}
		g.to.withdraw(key)
	}
}

// due is when there is something to expire, zero for never.
func (k *kept) due() time.Time {
	at, _ := k.expiring.Next()
	return at
}

// earlier is the earlier one of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// offered returns what the part offers under a key.
func (p *part) offered(key string) offer {
	if c := p.union.members[key]; c != nil {
		return c.of(p)
	}
	return offer{}
}
