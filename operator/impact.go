package operator

// The impact of a change of a resource, and unused resources, on the operator's page. Both follow references through
// all resources, one type after another, and keep only what they search for.

import (
	"cmp"
	"hash/maphash"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// leading are the types whose resources name others, each before the types that it refers to.
var leading = []string{
	xdstype.ListenerV3, xdstype.ScopedRouteV3, xdstype.RouteV3, xdstype.VirtualHostV3, xdstype.ExtensionConfigV3, xdstype.ClusterV3, xdstype.EndpointsV3,
}

const (
	// mostPasses bounds the passes over all references: aggregate clusters can refer to others of their type.
	mostPasses = 8
	// mostTouched bounds the resources that a change is found to touch, and mostTouchedShown those on a page.
	mostTouched, mostTouchedShown = 10_000, 50
)

// Touches has the resources and clients that a change of a resource touches.
type Touches struct {
	// Resources are the first of those that name it, directly or indirectly: clusters before routes, routes before
	// listeners, and by name within a type. Total counts all.
	Resources []ResourceRef `json:"resources"`
	Total     int           `json:"total"`
	// Cut says that there may be more, because not all resources were read.
	Cut bool `json:"cut,omitempty"`
	// Clients counts the clients that hold or have requested the resource or one of Resources, among LookedAt
	// clients.
	Clients  int `json:"clients"`
	LookedAt int `json:"looked_at"`
	// Streams counts all open streams of clients.
	Streams int `json:"streams"`
}

// touched caches the newest answer.
type touched struct {
	of     cache.Key
	until  time.Time
	answer *Touches
}

// passage follows references through all resources.
type passage struct {
	observer *Observer
	left     time.Duration // time left for reading
	unread   int
}

// each calls f for each resource of a type in all scopes, with its references. member says that clients have it as a
// member of a wildcard or glob. The caller holds references.mu.
func (p *passage) each(typeURL string, f func(k cache.Key, member bool, references []graph.Reference)) {
	type found struct {
		name     string
		resource *cache.Resource
		member   bool
	}
	for _, scope := range p.observer.acceptedScopes() {
		var all []found // call f only after Browse has returned
		p.observer.Cache.Browse(scope, typeURL, func(i cache.Item) bool {
			if i.Resource != nil {
				all = append(all, found{i.Key.Name, i.Resource, i.Set != ""})
			}
			return true
		})
		for _, i := range all {
			references, read := p.observer.references.read(i.resource, &p.left)
			if !read {
				p.unread++
			}
			f(cache.Key{Scope: scope, TypeURL: typeURL, Name: i.name}, i.member, references)
		}
	}
}

// names returns the key of a resource, and the keys of all names that match several resources and this one.
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
func (r *Observer) touches(k cache.Key) *Touches {
	s := &r.references
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	if s.touched.answer != nil && s.touched.of == k && began.Before(s.touched.until) {
		return s.touched.answer
	}
	s.remember()
	p := &passage{observer: r, left: readingTakes}
	t := &Touches{Resources: []ResourceRef{}, Streams: r.Server.Clients()}
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
	slices.SortFunc(order[1:], func(a, b cache.Key) int {
		return cmp.Or(
			cmp.Compare(slices.Index(leading, b.TypeURL), slices.Index(leading, a.TypeURL)),
			cmp.Compare(a.Scope.Authority, b.Scope.Authority),
			cmp.Compare(a.Name, b.Name),
		)
	})
	for _, key := range order[1:min(len(order), mostTouchedShown+1)] {
		t.Resources = append(t.Resources, refOf(key))
	}
	r.countHolders(t, order)
	s.touched = touched{k, time.Now().Add(lookShare * time.Since(began)), t}
	return t
}

// countHolders counts the clients that hold or have requested one of some resources: by its name, or by a wildcard or
// glob that has it.
func (r *Observer) countHolders(t *Touches, keys []cache.Key) {
	wanted, types := map[cache.Key]bool{}, map[string]bool{}
	for _, k := range keys {
		wanted[k], types[k.TypeURL] = true, true
		if i, known := r.Cache.Look(k); known && i.Set != "" {
			k.Name = i.Set
			wanted[k] = true
		}
	}
	until := time.Now().Add(holdersTake)
	for c := range r.Server.Inspect(0) {
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

// use has the resources that something refers to. It does not change after it was made.
type use struct {
	seed maphash.Seed
	of   map[uint64]struct{} // hashes of names, also of names that match several resources
	// many has the types that have names that match several resources.
	many  map[string]bool
	until time.Time
	// unread counts the resources that have not been read yet. Until it is 0, no resource is known to be unused.
	unread int
}

// has reports whether something refers to a resource.
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

// uses returns the resources that something refers to: the names that clients have requested, and the direct and
// indirect references of these and of members that clients get without a reference to them, such as Listeners.
func (r *Observer) uses() use {
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
		r.Cache.Browse(scope, "", func(i cache.Item) bool {
			if i.Set == "" {
				u.add(i.Key, false)
			}
			return true
		})
	}
	p := &passage{observer: r, left: readingTakes}
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

// UnusedList is a page of a list of unused resources, as /api/unused shows it.
type UnusedList struct {
	Resources []ResourceRow `json:"resources"`
	// Unread counts the resources whose references were not read yet. Until all are read, the list is empty.
	Unread int `json:"unread,omitempty"`
	// Next, if not "", is the `after` of the next page.
	Next        string   `json:"next,omitempty"`
	Authorities []string `json:"authorities"`
	Authority   string   `json:"authority,omitempty"`
	Search      string   `json:"search,omitempty"`
}

// unusedList answers a query for unused resources: clients have them as members of a wildcard or glob, but no client
// has requested them by name, and nothing refers to them.
func (r *Observer) unusedList(q url.Values) (*UnusedList, error) {
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
		r.Cache.Browse(scope, "", func(i cache.Item) bool {
			if i.Set == "" || i.Resource == nil || !graph.Named(i.Key.TypeURL) || u.has(i.Key) {
				return true
			}
			return top.add(i)
		})
	}
	l.Resources, l.Next = top.rows()
	return l, nil
}
