package collections

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/types/known/anypb"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// TestSetsAreWhatTheyAreMadeOf: after any changes of members, lists and globs, with lists in
// lists, loops and redirects among them, a client of a view has the result of a plain recursion
// over the state of all authorities.
func TestSetsAreWhatTheyAreMadeOf(t *testing.T) {
	checkInBubble(t, func(t *testing.T, rt *rapid.T) { newSetWorld(t, rt).run(rt) })
}

// checkInBubble checks a property, each time in a bubble of its own.
func checkInBubble(t *testing.T, property func(*testing.T, *rapid.T)) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		var failed any // which is rapid's, and for its own goroutine
		synctest.Test(t, func(t *testing.T) {
			defer func() { failed = recover() }()
			property(t, rt)
		})
		if wrong, ok := failed.(worldError); ok {
			rt.Fatal(string(wrong))
		}
		if failed != nil {
			panic(failed)
		}
	})
}

// worldError is what is wrong.
type worldError string

func wrongf(format string, args ...any) { panic(worldError(fmt.Sprintf(format, args...))) }

// Names of the world: members, of which some can be redirected to, by earlier ones;
// lists, which may be in each other; and globs.
var (
	worldTargets = []string{"a/0", "b/1", "c/2"}
	worldNames   = append(slices.Clone(worldTargets), "a/g/0", "b/g/1")
	worldLists   = []string{"a:0", "b:1", "c:2"}
	worldGlobs   = []string{"a/g/*", "b/g/*"}
)

// worldMember is the state of a member at its authority: content, a redirect to a name, or nothing.
type worldMember struct{ content, to string }

// worldEntry is an entry of a list: a locator of anything, or an inline entry whose
// resource has a name.
type worldEntry struct{ to, inner, content string }

type setWorld struct {
	*origins
	globs *globs
	views map[string]View
	n     int // of contents so far

	members map[string]worldMember
	lists   map[string][]worldEntry // without those that do not exist
	sets    map[string]map[string]worldMember
	clients []*worldClient
}

// worldClient is a client of a set.
type worldClient struct {
	cache.SetWatch
	key  cache.Key
	set  *cache.Set
	view *View // nil for a glob itself
	has  map[string]string
	gaps *gapWatch
}

func (c *worldClient) Changed() cache.Waker { return nil }

// gapWatch sees each state of a set. A member that is in the set before and after a change
// must be in it all the time.
type gapWatch struct {
	cache.SetWatch
	set  atomic.Pointer[cache.Set]
	gone map[string]bool // since the change
}

func (o *origins) watchGaps(k cache.Key) *gapWatch {
	g := &gapWatch{gone: map[string]bool{}}
	set := o.cache.WatchSet(k, g)
	set.Since(&g.SetWatch, func(cache.Member) bool { return true })
	g.set.Store(set)
	return g
}

func (g *gapWatch) Changed() cache.Waker { return g }

func (g *gapWatch) Wake() {
	set := g.set.Load()
	if set == nil {
		return // it will be seen next time
	}
	set.Since(&g.SetWatch, func(m cache.Member) bool {
		if m.News == cache.Removed {
			g.gone[m.Name] = true
		}
		return true
	})
}

func newSetWorld(t *testing.T, rt *rapid.T) *setWorld {
	w := &setWorld{views: map[string]View{}, members: map[string]worldMember{}, lists: map[string][]worldEntry{}, sets: map[string]map[string]worldMember{}}
	keys := []cache.Key{
		{Scope: cache.Scope{Derived: "view/0"}, TypeURL: clusterType, Name: cache.Wildcard},
		{Scope: cache.Scope{Derived: "view/1"}, TypeURL: clusterType, Name: long("d/all/*")},
	}
	for i, k := range keys {
		v := View{Rename: i == 1}
		for range rapid.IntRange(1, 3).Draw(rt, "collections") {
			url := rapid.SampledFrom(slices.Concat(worldLists, worldGlobs)).Draw(rt, "collection")
			if rapid.Bool().Draw(rt, "has alt") {
				url += "#alt=" + rapid.SampledFrom(slices.Concat(worldLists, worldGlobs)).Draw(rt, "alt")
			}
			u, _ := urn.ParseURL(long(url))
			if !slices.Contains(v.Collections, u) {
				v.Collections = append(v.Collections, u)
			}
		}
		w.views[k.Scope.Derived] = v
	}
	w.origins = newOrigins(t, Options{Views: w.views})
	defer func() {
		if failed := recover(); failed != nil {
			w.close()
			panic(failed)
		}
	}()
	w.globs = &globs{of: w.origins, says: map[string]cache.SetUpdate{}}
	for _, a := range known {
		w.setPolicy(a, Policy{NotFound: true})
	}
	for _, name := range worldNames {
		w.sayMember(rt, name)
	}
	for _, name := range worldLists {
		w.sayList(rt, name)
	}
	for _, name := range worldGlobs {
		w.saySet(rt, name)
	}
	for _, k := range keys {
		v := w.views[k.Scope.Derived]
		w.clients = append(w.clients, &worldClient{key: k, view: &v})
	}
	for _, g := range worldGlobs {
		w.clients = append(w.clients, &worldClient{key: derivedKey(long(g))})
	}
	return w
}

func (w *setWorld) run(rt *rapid.T) {
	defer w.close()
	for range rapid.IntRange(1, 12).Draw(rt, "rounds") {
		changes := rapid.IntRange(1, 3).Draw(rt, "changes")
		for _, c := range w.clients {
			if c.set != nil {
				clear(c.gaps.gone)
			}
		}
		for range changes {
			switch rapid.IntRange(0, 4).Draw(rt, "change") {
			case 0:
				w.sayMember(rt, rapid.SampledFrom(worldNames).Draw(rt, "name"))
			case 1, 2:
				w.sayList(rt, rapid.SampledFrom(worldLists).Draw(rt, "list"))
			case 3:
				w.saySet(rt, rapid.SampledFrom(worldGlobs).Draw(rt, "glob"))
			case 4:
				c := rapid.SampledFrom(w.clients).Draw(rt, "client")
				if c.set != nil {
					w.leave(c)
					*c = worldClient{key: c.key, view: c.view}
				} else {
					c.has = map[string]string{}
					c.set = w.cache.WatchSet(c.key, c)
					c.gaps = w.watchGaps(c.key)
				}
			}
		}
		w.globs.settle()
		for _, c := range w.clients {
			if c.set == nil {
				continue
			}
			had := maps.Clone(c.has)
			w.check(c)
			for name := range c.gaps.gone {
				if changes == 1 && had[name] != "" && c.has[name] != "" {
					wrongf("%s: %s was gone for a while", c.key.Name, name)
				}
			}
		}
	}
	for _, c := range w.clients {
		if c.set != nil {
			w.leave(c)
		}
	}
}

func (w *setWorld) leave(c *worldClient) {
	w.cache.Unwatch(c)
	w.cache.Unwatch(c.gaps)
}

// check compares a client's state with the plain evaluation.
func (w *setWorld) check(c *worldClient) {
	c.set.Since(&c.SetWatch, func(m cache.Member) bool {
		switch {
		case m.News == cache.Removed:
			delete(c.has, m.Name)
		case m.Resource != nil:
			inner, content := contentOf(m.Resource)
			if inner != m.Name {
				wrongf("%s says %s inside", m.Name, inner)
			}
			c.has[m.Name] = content
		}
		return true
	})
	if is, err := c.set.Status(); is != cache.Present {
		if want := w.eval(c); want.ok {
			wrongf("%s: %v, %v, want %v", c.key.Name, is, err, want.members)
		}
		return
	}
	if want := w.eval(c); !maps.Equal(c.has, want.members) {
		wrongf("%s: got %v, want %v", c.key.Name, c.has, want.members)
	}
}

func (w *setWorld) fresh() string { w.n++; return fmt.Sprint("v", w.n) }

func (w *setWorld) drawMember(rt *rapid.T, later []string) worldMember {
	switch rapid.IntRange(0, 3).Draw(rt, "kind") {
	case 0:
		return worldMember{}
	case 1:
		if len(later) > 0 {
			return worldMember{to: rapid.SampledFrom(later).Draw(rt, "to")}
		}
	}
	return worldMember{content: w.fresh()}
}

func (w *setWorld) change(name string, m worldMember) cache.Change {
	name = long(name)
	switch {
	case m.to != "":
		return cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{
			Name: name, TypeURL: xdstype.Locator, Value: mustMarshal(w.T, locator(w.T, long(m.to))), Redirect: long(m.to),
		})}
	case m.content != "":
		return cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{
			Name: name, TypeURL: clusterType, Value: clusterNamed(w.T, name, m.content),
		})}
	}
	return cache.Change{Name: name, Gone: true}
}

func (w *setWorld) sayMember(rt *rapid.T, name string) {
	m := w.drawMember(rt, worldTargets[slices.Index(worldTargets, name)+1:])
	w.members[name] = m
	w.say(w.change(name, m))
}

func (w *setWorld) sayList(rt *rapid.T, name string) {
	if rapid.IntRange(0, 5).Draw(rt, "exists") == 0 {
		delete(w.lists, name)
		w.say(cache.Change{Name: long(name), Gone: true})
		return
	}
	list, entries := []worldEntry{}, [][]byte{}
	for range rapid.IntRange(0, 4).Draw(rt, "entries") {
		var e worldEntry
		if rapid.IntRange(0, 3).Draw(rt, "inline") == 0 {
			e = worldEntry{inner: rapid.SampledFrom(slices.Concat(worldNames, []string{"old-style"})).Draw(rt, "inner"), content: w.fresh()}
			entries = append(entries, inlineEntry(w.T, "", "1", anyOfCluster(w.T, longOr(e.inner), e.content)))
		} else {
			e.to = rapid.SampledFrom(slices.Concat(worldNames, worldLists, worldGlobs)).Draw(rt, "to")
			entries = append(entries, locatorEntry(w.T, long(e.to)))
		}
		list = append(list, e)
	}
	w.lists[name] = list
	w.say(cache.Change{Name: long(name), Resource: cache.NewResource(cache.Spec{
		Name: long(name), TypeURL: collectionType, Value: collection(long(name), entries...).Value(),
	})})
}

func (w *setWorld) saySet(rt *rapid.T, glob string) {
	u := cache.SetUpdate{Name: long(glob), Extent: cache.WholeIf(w.sets[glob] == nil || rapid.Bool().Draw(rt, "full"))}
	if u.Extent.Full() {
		w.sets[glob] = map[string]worldMember{}
	}
	for i := range 3 {
		name := glob[:len(glob)-1] + fmt.Sprint(i)
		if !u.Extent.Full() && rapid.Bool().Draw(rt, "stays") {
			continue
		}
		m := w.drawMember(rt, worldTargets)
		delete(w.sets[glob], name)
		if m != (worldMember{}) {
			w.sets[glob][name] = m
		}
		if c := w.change(name, m); !u.Extent.Full() || !c.Gone {
			u.Changes = append(u.Changes, c)
		}
	}
	w.globs.say(u)
}

// evaluated is the result for a collection.
type evaluated struct {
	ok      bool // it can be had
	exists  bool
	members map[string]string
}

// eval evaluates what a client requested.
func (w *setWorld) eval(c *worldClient) evaluated {
	rename := func(name string) string { return name }
	if c.view == nil {
		return w.evalGlob(short(c.key.Name), rename)
	}
	if c.view.Rename {
		rename = func(name string) string { return urn.MemberOf(c.key.Name, name) }
	}
	all := evaluated{members: map[string]string{}}
	for _, u := range c.view.Collections {
		is := w.evalURL(u, rename)
		all.ok = all.ok || is.ok
		all.add(is)
	}
	return all
}

// add adds the members of another collection whose names are not there yet.
func (e *evaluated) add(other evaluated) {
	for name, content := range other.members {
		if _, ok := e.members[name]; !ok {
			e.members[name] = content
		}
	}
}

func (w *setWorld) evalURL(u urn.URL, rename func(string) string) evaluated {
	is := w.evalCollection(short(u.Key().Name), nil, rename)
	if alt, ok := u.Alt(); ok && is.ok && !is.exists {
		if other := w.evalCollection(short(alt.Key().Name), nil, rename); other.exists {
			return other
		}
	}
	return is
}

func (w *setWorld) evalCollection(name string, passed []string, rename func(string) string) evaluated {
	if slices.Contains(worldGlobs, name) {
		return w.evalGlob(name, rename)
	}
	is := evaluated{members: map[string]string{}}
	if slices.Contains(passed, name) {
		return is
	}
	is.ok = true
	list, exists := w.lists[name]
	if is.exists = exists; !exists {
		return is
	}
	passed = append(slices.Clone(passed), name)
	for _, e := range list {
		switch {
		case e.inner != "" && foreignTo(long(name), longOr(e.inner)):
		case e.inner != "":
			is.add(evaluated{members: map[string]string{rename(longOr(e.inner)): e.content}})
		case slices.Contains(worldNames, e.to):
			is.add(w.evalName(long(e.to), worldMember{to: e.to}, rename))
		default:
			is.add(w.evalCollection(e.to, passed, rename))
		}
	}
	return is
}

func (w *setWorld) evalGlob(glob string, rename func(string) string) evaluated {
	is := evaluated{ok: true, exists: true, members: map[string]string{}}
	for name, m := range w.sets[glob] {
		is.add(w.evalName(long(name), m, rename))
	}
	return is
}

// evalName evaluates a member, and follows its redirects.
func (w *setWorld) evalName(name string, m worldMember, rename func(string) string) evaluated {
	for m.to != "" {
		m = w.members[m.to]
	}
	if m.content == "" {
		return evaluated{}
	}
	return evaluated{members: map[string]string{rename(name): m.content}}
}

// longOr is long, of what is a name.
func longOr(name string) string {
	if name == "old-style" {
		return name
	}
	return long(name)
}

// foreignTo reports whether an inline entry of a list has a name of another authority.
func foreignTo(list, inner string) bool {
	return urn.IsXdstp(inner) && keyOf(inner).Scope.Authority != keyOf(list).Scope.Authority
}

func anyOfCluster(t testing.TB, name, content string) *anypb.Any {
	return &anypb.Any{TypeUrl: clusterType, Value: clusterNamed(t, name, content)}
}
