package relay

// What a change of a resource would touch, and which resources are of no use, on the operator's page. Both follow
// references through all resources, a type after the other, and keep only what they look for.

import (
	"hash/maphash"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/graph"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/xdstype"
)

// leading are the types whose resources name others, each before those that it leads to.
var leading = []string{
	xdstype.ListenerV3, xdstype.ScopedRouteV3, xdstype.RouteV3, xdstype.VirtualHostV3, xdstype.ExtensionConfigV3, xdstype.ClusterV3, xdstype.EndpointsV3,
}

const (
	// mostPasses is how often references are followed: aggregate clusters can lead to others of their type.
	mostPasses = 8
	// mostTouched bounds the resources that a change is known to touch, and mostTouchedShown those that a page has.
	mostTouched, mostTouchedShown = 10_000, 50
)

// Touches is what a change of a resource touches.
type Touches struct {
	// Resources are the first of those that name it, directly or not, and Total is how many there are.
	Resources []ResourceRef `json:"resources"`
	Total     int           `json:"total"`
	// Cut says that there may be more, as not all resources were read.
	Cut bool `json:"cut,omitempty"`
	// Clients is how many clients hold the resource or one of those, or want it, of LookedAt clients.
	Clients  int `json:"clients"`
	LookedAt int `json:"looked_at"`
	// Streams is how many streams of clients are open.
	Streams int `json:"streams"`
}

// touched is the newest answer, which is right for a while.
type touched struct {
	of     cache.Key
	until  time.Time
	answer *Touches
}

// passage follows references through all resources.
type passage struct {
	relay  *Relay
	left   time.Duration // for reading
	unread int
}

// each calls f for each resource of a type of each scope, with what it names. member says that clients have it as a
// member of a wildcard or glob. The caller holds references.mu.
func (p *passage) each(typeURL string, f func(k cache.Key, member bool, references []graph.Reference)) {
	type found struct {
		name     string
		resource *cache.Resource
		member   bool
	}
	for _, scope := range p.relay.acceptedScopes() {
		var all []found // f must not be called during Browse
		p.relay.cache.Browse(scope, typeURL, func(i cache.Item) bool {
			if i.Resource != nil {
				all = append(all, found{i.Key.Name, i.Resource, i.Set != ""})
			}
			return true
		})
		for _, i := range all {
			references, read := p.relay.references.read(i.resource, &p.left)
			if !read {
				p.unread++
			}
			f(cache.Key{Scope: scope, TypeURL: typeURL, Name: i.name}, i.member, references)
		}
	}
}

// names returns the key of a resource, and those of all that stand for it among others.
func names(k cache.Key) []cache.Key {
	all := []cache.Key{k}
	for _, name := range graph.SetsOf(graph.ID{TypeURL: k.TypeURL, Name: k.Name}) {
		set := k
		set.Name = name
		all = append(all, set)
	}
	return all
}

// touches returns what a change of a resource touches.
func (r *Relay) touches(k cache.Key) *Touches {
	s := &r.references
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	if s.touched.answer != nil && s.touched.of == k && began.Before(s.touched.until) {
		return s.touched.answer
	}
	s.remember()
	p := &passage{relay: r, left: readingTakes}
	t := &Touches{Resources: []ResourceRef{}, Streams: r.server.Clients()}
	found, order := map[cache.Key]bool{k: true}, []cache.Key{k}
	wanted := map[cache.Key]bool{}
	for _, name := range names(k) {
		wanted[name] = true
	}
	for before := 0; before != len(order) && len(order) < mostTouched; {
		before, p.unread = len(order), 0
		for _, typeURL := range slices.Backward(leading) {
			p.each(typeURL, func(from cache.Key, _ bool, references []graph.Reference) {
				if len(order) >= mostTouched || found[from] || !slices.ContainsFunc(references, func(to graph.Reference) bool {
					at, ok := r.target(from.Scope, to.To)
					return ok && wanted[at]
				}) {
					return
				}
				found[from] = true
				order = append(order, from)
				for _, name := range names(from) {
					wanted[name] = true
				}
			})
		}
	}
	t.Total, t.Cut = len(order)-1, p.unread > 0 || len(order) >= mostTouched
	for _, key := range order[1:min(len(order), mostTouchedShown+1)] {
		t.Resources = append(t.Resources, refOf(key))
	}
	r.countHolders(t, order)
	s.touched = touched{k, time.Now().Add(lookShare * time.Since(began)), t}
	return t
}

// countHolders counts the clients that hold one of some resources, or want it: by its name, or by a wildcard or glob
// that has it.
func (r *Relay) countHolders(t *Touches, keys []cache.Key) {
	wanted, types := map[cache.Key]bool{}, map[string]bool{}
	for _, k := range keys {
		wanted[k], types[k.TypeURL] = true, true
		if i, known := r.cache.Look(k); known && i.Set != "" {
			k.Name = i.Set
			wanted[k] = true
		}
	}
	until := time.Now().Add(holdersTake)
	for c := range r.server.Inspect(0) {
		if time.Now().After(until) {
			return
		}
		t.LookedAt++
		if slices.ContainsFunc(c.Types, func(of downstream.TypeStatus) bool {
			if !types[of.TypeURL] {
				return false
			}
			for key := range c.Subscribed(of.TypeURL) {
				key.Scope = key.Scope.Accepted()
				if wanted[key] {
					return true
				}
			}
			return false
		}) {
			t.Clients++
		}
	}
}

// use says which resources something leads to. It does not change once it is made.
type use struct {
	seed maphash.Seed
	of   map[uint64]struct{} // hashes of names, and of those that stand for several
	// many has the types of which there are names that stand for several.
	many  map[string]bool
	until time.Time
	// unread is how many resources have not been read yet. Until then, nothing is known to be unused.
	unread int
}

// has reports whether something leads to a resource.
func (u *use) has(k cache.Key) bool {
	is := func(k cache.Key) bool { _, is := u.of[maphash.Comparable(u.seed, k)]; return is }
	return is(k) || u.many[k.TypeURL] && slices.ContainsFunc(names(k), is)
}

func (u *use) add(k cache.Key, many bool) (added bool) {
	before := len(u.of)
	u.of[maphash.Comparable(u.seed, k)] = struct{}{}
	if many {
		u.many[k.TypeURL] = true
	}
	return len(u.of) > before
}

// uses returns which resources something leads to: a listener or another resource that clients request by
// themselves, or a name that a client has requested.
func (r *Relay) uses() use {
	s := &r.references
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remember()
	began := time.Now()
	if s.use.of != nil && began.Before(s.use.until) {
		return s.use
	}
	u := use{seed: maphash.MakeSeed(), of: map[uint64]struct{}{}, many: map[string]bool{}}
	for _, scope := range r.acceptedScopes() {
		r.cache.Browse(scope, "", func(i cache.Item) bool {
			if i.Set == "" {
				u.add(i.Key, false)
			}
			return true
		})
	}
	p := &passage{relay: r, left: readingTakes}
	for more, passes := true, 0; more && passes < mostPasses; passes++ {
		more, p.unread = false, 0
		for _, typeURL := range leading {
			p.each(typeURL, func(from cache.Key, member bool, references []graph.Reference) {
				if member && graph.Named(typeURL) && !u.has(from) {
					return
				}
				for _, to := range references {
					if at, ok := r.target(from.Scope, to.To); ok && u.add(at, to.Many) {
						more = true
					}
				}
			})
		}
	}
	u.unread = p.unread
	u.until = time.Now().Add(lookShare * time.Since(began))
	s.use = u
	return u
}

// UnusedList is a page of a list of resources that are of no use, as /api/unused shows it.
type UnusedList struct {
	Resources []ResourceRow `json:"resources"`
	// Unread is how many resources were not read yet for what they name. Until all are, the list is empty.
	Unread int `json:"unread,omitempty"`
	// Next, if not "", is the `after` of the next page.
	Next        string   `json:"next,omitempty"`
	Authorities []string `json:"authorities"`
	Authority   string   `json:"authority,omitempty"`
	Search      string   `json:"search,omitempty"`
}

// unusedList answers a query for resources that clients have as members of a wildcard or glob, and that no client
// has requested by name and nothing leads to.
func (r *Relay) unusedList(q url.Values) (*UnusedList, error) {
	l := &UnusedList{Resources: []ResourceRow{}, Authorities: []string{}, Authority: q.Get("authority"), Search: loglines.ClipTo(strings.TrimSpace(q.Get("search")), 300)}
	top, err := topOf(q, l.Search)
	if err != nil {
		return nil, err
	}
	u := r.uses()
	l.Unread = u.unread
	for _, scope := range r.acceptedScopes() {
		if !slices.Contains(l.Authorities, scope.Authority) {
			l.Authorities = append(l.Authorities, scope.Authority)
		}
		if u.unread > 0 || l.Authority != "" && scope.Authority != l.Authority || top.passes(scope) {
			continue
		}
		r.cache.Browse(scope, "", func(i cache.Item) bool {
			if i.Set == "" || i.Resource == nil || !graph.Named(i.Key.TypeURL) || u.has(i.Key) {
				return true
			}
			return top.add(i)
		})
	}
	l.Resources, l.Next = top.rows()
	return l, nil
}
