package collections

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "Glob". The source of a glob collection. Its members may be redirects; the glob
// itself may not.

// globSource gives the members of a leaf set: a glob, or a wildcard.
type globSource struct {
	cache.SetWatch
	*setContext
	to     *input
	leaf   cache.Key
	set    *cache.Set
	queued inInbox
	pendingQuery

	redirects map[string]*redirectMember // by key
	// withoutResource are the keys of candidates that have only an error.
	withoutResource map[string]struct{}
	redirectMembers
	current sourceState
	dueAt   time.Time
}

func newGlobSource(s *setContext, to *input, leaf cache.Key) *globSource {
	g := &globSource{setContext: s, to: to, leaf: leaf, pendingQuery: s.beginQuery(), redirects: map[string]*redirectMember{}}
	g.EachArrival = true
	g.set = s.topics.WatchSet(leaf, g)
	s.collections++
	s.startStep(g)
	return g
}

// Changed implements cache.Watcher.
func (g *globSource) Changed() cache.Waker { return g.enqueue(g, &g.queued) }

// process schedules the reading of the changes.
func (g *globSource) process(*Resolver) {
	g.queued.Store(false)
	if g.set != nil {
		g.schedule(g)
	}
}

func (g *globSource) due() time.Time { return earlier(g.dueAt, g.redirectMembers.due()) }

// batch is the maximal number of members to read at once. While they are read, the cache cannot
// store changes in the set.
const batch = 4096

// step reads a batch of changes.
func (g *globSource) step(now time.Time) {
	most := min(batch, g.remaining())
	var members []cache.Member
	all := g.set.Since(&g.SetWatch, func(m cache.Member) bool {
		if len(members) == most {
			return false
		}
		members = append(members, m)
		return true
	})
	for i := range members {
		g.update(&members[i], now)
		g.spend()
	}
	g.expire(now)
	if all {
		g.updateState(now)
	} else {
		g.schedule(g)
	}
}

// updateState updates the source's state, and reports a change to the input.
func (g *globSource) updateState(now time.Time) {
	is := g.current
	status, err := g.set.Status()
	if status != cache.Requested {
		g.endQuery()
	}
	switch {
	case status == cache.Failed && err.Code == codes.NotFound:
		is = sourceState{status: cache.Absent}
	case status == cache.Failed:
		is = sourceState{status: cache.Failed, err: err}
	case status == cache.Present && (g.unknown == 0 || is.status == cache.Present):
		is = sourceState{status: cache.Present, partial: g.set.Partial() || g.set.Incomplete(), stale: g.set.Stale()}
	case status == cache.Present:
		is = sourceState{}
	}
	if g.renameTo == "" && g.leaf.Name != cache.Wildcard {
		is.gap, is.awaited = g.leaf.Name, g.set.Incomplete()
	}
	is.unreachable, is.withinGrace, g.dueAt = g.reachability(g.leaf, status, err, now)
	if g.current != is {
		g.current = is
		g.to.stateChanged()
	}
}

func (g *globSource) state() sourceState { return g.current }

func (g *globSource) keys(yield func(string)) {
	var names []string // collected first: the set is locked during the loop
	g.set.SentTo(&g.SetWatch, func(name, _ string) { names = append(names, name) })
	for _, name := range names {
		key, _ := g.memberKey(name)
		yield(key)
	}
	for key := range g.redirects {
		yield(key)
	}
	for key := range g.withoutResource {
		yield(key)
	}
}

// update processes a change of a member.
func (g *globSource) update(m *cache.Member, now time.Time) {
	key, spelled := g.memberKey(m.Name)
	old := g.redirects[key]
	if m.Resource != nil {
		delete(g.withoutResource, key)
	} else {
		if g.withoutResource == nil {
			g.withoutResource = map[string]struct{}{}
		}
		g.withoutResource[key] = struct{}{}
	}
	switch {
	case m.News == cache.ErrorOnly:
		if old == nil { // a redirect, and its target, stay as they are
			g.to.set(key, candidate{g.resource(key, m), m.Err}, false)
		}
	case m.News == cache.Removed:
		g.dropRedirect(key)
		g.withdraw(key)
	case m.Resource.Redirect() == "" || g.asEntries || g.passRedirects:
		g.dropRedirect(key)
		g.to.set(key, candidate{g.resource(key, m), m.Err}, true)
	case old == nil || old.url != m.Resource.Redirect() || old.spelled != spelled:
		g.followRedirect(key, m, now)
	}
}

// resource returns a member's resource in the form in which the source passes it on.
func (g *globSource) resource(key string, m *cache.Member) *cache.Resource {
	switch {
	case m.Resource == nil:
		return nil
	case g.asEntries:
		u, err := urn.ParseURL(key)
		if err != nil {
			return nil
		}
		return locatorOf(u)
	case g.renameTo != "":
		return named(key, key, "", &result{State: cache.State{Resource: m.Resource}, origin: canonical(m.Name)})
	}
	return m.Resource
}

// withdraw removes a member that the leaf set has lost.
func (g *globSource) withdraw(key string) {
	g.ofGlob = true
	g.to.withdraw(key)
	g.ofGlob = false
}

func (g *globSource) dropRedirect(key string) {
	if r := g.redirects[key]; r != nil {
		delete(g.redirects, key)
		g.expiring.End(key)
		g.markKnown(r)
		r.close()
	}
}

// refresh watches the set like a new subscriber, so that members that must not be served from the
// cache are requested again.
func (g *globSource) refresh() {
	for _, r := range g.redirects {
		r.refresh()
	}
	newcomer := &globSource{setContext: g.setContext}
	g.topics.WatchSet(g.leaf, newcomer)
	g.topics.Unwatch(newcomer)
}

func (g *globSource) refuse(key string, sent uint32) {
	if r := g.redirects[key]; r != nil {
		r.refuse(key, sent)
		return
	}
	if g.renameTo != "" {
		key = urn.MemberOf(g.leaf.Name, key)
	}
	g.set.Refuse(key, sent)
}

func (g *globSource) close() {
	g.endStep(g)
	g.collections--
	g.endQuery()
	g.topics.Unwatch(g)
	g.set = nil
	for _, r := range g.redirects {
		r.close()
	}
}

// redirectMember is a member of a glob that is a redirect. Until its target is known, clients
// see the member's value before the redirect.
type redirectMember struct {
	memberLookup
	url string
	// unknown: it has neither a target nor a value before the redirect.
	unknown bool
}

// redirectMembers is the common state of a glob's redirects.
type redirectMembers struct {
	unknown  int                    // how many are unknown
	expiring cache.Expiries[string] // keys whose value before the redirect has a TTL
}

// followRedirect begins to look up the target of a member. Until the target is known, the member
// keeps its value before the redirect: the value in this source or, if the source does not have
// the member yet, the value in the leaf set.
func (g *globSource) followRedirect(key string, m *cache.Member, now time.Time) {
	g.dropRedirect(key)
	if m.Previous != nil && g.to.candidateOf(key).resource == nil {
		was := cache.Member{Name: m.Name, Resource: m.Previous}
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
		// The TTL began earlier, so the value expires late rather than early.
		g.expiring.Set(key, now.Add(shown.TTL()))
	}
	u, err := urn.ParseURL(r.url)
	r.onFound = func() {
		g.set.DropPrevious(canonical(m.Name))
		g.expiring.End(key)
	}
	r.start(g.setContext, g.to, m.Name, func() {
		g.markKnown(r)
		g.schedule(g)
	}, target{typeURL: g.typeURL, params: g.params, side: g.side, url: u, path: []string{canonical(m.Name)}}, err)
}

// markKnown records that the state of the set no longer waits for a redirect.
func (g *globSource) markKnown(r *redirectMember) {
	if r.unknown {
		r.unknown = false
		g.unknown--
	}
}

// expire removes the values before redirects whose TTL has ended. xDS: "TTL".
func (g *globSource) expire(now time.Time) {
	for _, key := range g.expiring.Due(now) {
		r := g.redirects[key]
		r.onFound() // the set also forgets the value
		r.last = candidate{}
		g.withdraw(key)
	}
}

// due returns when the next value expires, zero for never.
func (k *redirectMembers) due() time.Time {
	at, _ := k.expiring.Next()
	return at
}

// earlier returns the earlier of two times; zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
