package collections

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "Glob". Its members may be redirects; itself it may not.

// globSource are the members of a leaf set: a glob, or a wildcard.
type globSource struct {
	cache.SetWatch
	*setting
	to     *part
	leaf   cache.Key
	set    *cache.Set
	queued bool // guarded by Resolver.inbox
	question

	redirects map[string]*redirect // by key
	// missing are the keys of what is offered without a resource, as it cannot be had.
	missing map[string]struct{}
	kept
	is    condition
	dueAt time.Time
}

func newGlobSource(s *setting, to *part, leaf cache.Key) *globSource {
	g := &globSource{setting: s, to: to, leaf: leaf, question: s.ask(), redirects: map[string]*redirect{}}
	g.Each = true
	g.set = s.topics.WatchSet(leaf, g)
	s.collections++
	s.begin(g)
	return g
}

// Changed implements cache.Watcher.
func (g *globSource) Changed() cache.Waker { return g.mark(g) }

func (g *globSource) queue() *bool { return &g.queued }

func (g *globSource) dirty() {
	if g.set != nil {
		g.todo(g)
	}
}

func (g *globSource) due() time.Time { return earlier(g.dueAt, g.kept.due()) }

// batch is how many members are read at once: so long nothing else can be stored in
// the set.
const batch = 4096

// step reads what has changed, a batch of it.
func (g *globSource) step(now time.Time) {
	most := min(batch, g.left())
	var members []cache.Member
	all := g.set.Since(&g.SetWatch, func(m cache.Member) bool {
		if len(members) == most {
			return false
		}
		members = append(members, m)
		return true
	})
	for i := range members {
		g.take(&members[i], now)
		g.spend()
	}
	g.expire(now)
	if all {
		g.turn(now)
	} else {
		g.todo(g)
	}
}

// turn brings the condition up to date.
func (g *globSource) turn(now time.Time) {
	is := g.is
	status, err := g.set.Status()
	if status != cache.Requested {
		g.over()
	}
	switch {
	case status == cache.Failed && err.Code == codes.NotFound:
		is = condition{status: cache.Absent}
	case status == cache.Failed:
		is = condition{status: cache.Failed, err: err}
	case status == cache.Present && (g.open == 0 || is.status == cache.Present):
		is = condition{status: cache.Present, partial: g.set.Partial() || g.set.Incomplete()}
	case status == cache.Present:
		is = condition{}
	}
	is.down, is.shaky, g.dueAt = g.reach(g.leaf, status, err, now)
	if g.is != is {
		g.is = is
		g.to.turned()
	}
}

func (g *globSource) condition() condition { return g.is }

func (g *globSource) offered(yield func(string)) {
	var names []string // first, as the set is locked meanwhile
	g.set.Held(&g.SetWatch, func(name, _ string) { names = append(names, name) })
	for _, name := range names {
		key, _ := g.member(name)
		yield(key)
	}
	for key := range g.redirects {
		yield(key)
	}
	for key := range g.missing {
		yield(key)
	}
}

// take takes what is new about a member.
func (g *globSource) take(m *cache.Member, now time.Time) {
	key, spelled := g.member(m.Name)
	old := g.redirects[key]
	if m.Resource != nil {
		delete(g.missing, key)
	} else {
		if g.missing == nil {
			g.missing = map[string]struct{}{}
		}
		g.missing[key] = struct{}{}
	}
	switch {
	case m.News == cache.Nothing:
		if old == nil { // a redirect stays what it was, and what it leads to
			g.to.offer(key, offer{g.resource(key, m), m.Err}, false)
		}
	case m.News == cache.Removed:
		g.drop(key)
		g.to.withdraw(key)
	case m.Resource.Redirect() == "" || g.listing || g.passes:
		g.drop(key)
		g.to.offer(key, offer{g.resource(key, m), m.Err}, true)
	case old == nil || old.url != m.Resource.Redirect() || old.spelled != spelled:
		g.obey(key, m, now)
	}
}

// resource is a member's own resource as it is offered.
func (g *globSource) resource(key string, m *cache.Member) *cache.Resource {
	switch {
	case m.Resource == nil:
		return nil
	case g.listing:
		u, err := urn.ParseURL(key)
		if err != nil {
			return nil
		}
		return locatorOf(u)
	case g.renameTo != "":
		return named(key, "", &result{State: cache.State{Resource: m.Resource}, origin: canonical(m.Name)})
	}
	return m.Resource
}

func (g *globSource) drop(key string) {
	if r := g.redirects[key]; r != nil {
		delete(g.redirects, key)
		g.expiring.End(key)
		g.settle(r)
		r.close()
	}
}

// refresh has what is not for newcomers asked for anew: that is what the coming of one
// does.
func (g *globSource) refresh() {
	for _, r := range g.redirects {
		r.refresh()
	}
	newcomer := &globSource{setting: g.setting}
	g.topics.WatchSet(g.leaf, newcomer)
	g.topics.Unwatch(newcomer)
}

func (g *globSource) close() {
	g.end(g)
	g.collections--
	g.over()
	g.topics.Unwatch(g)
	g.set = nil
	for _, r := range g.redirects {
		r.close()
	}
}
