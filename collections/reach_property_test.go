package collections

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// TestSetsThroughTheDeathOfAuthorities: views and globs over lists that redirect and
// contain each other, members that redirect, loops of both, and alternatives of all of
// them, while authorities become reachable and unreachable. When nothing more happens, clients
// have the result of a plain recursion over the known state of each name (plain_test.go).
func TestSetsThroughTheDeathOfAuthorities(t *testing.T) {
	checkInBubble(t, func(t *testing.T, rt *rapid.T) { newReachWorld(t, rt).run(rt) })
}

const reachDepth = 5

type reachWorld struct {
	*origins
	globs   *globs
	n       int // of contents so far
	clients []*reachClient
	log     []string // what happened
}

type reachClient struct {
	worldClient
	was *memory
}

func newReachWorld(t *testing.T, rt *rapid.T) *reachWorld {
	w := &reachWorld{}
	views := map[string]View{}
	keys := []cache.Key{
		{Scope: cache.Scope{Derived: "view/0"}, TypeURL: clusterType, Name: cache.Wildcard},
		{Scope: cache.Scope{Derived: "view/1"}, TypeURL: clusterType, Name: long("d/all/*")},
	}
	for i, k := range keys {
		v := View{Rename: i == 1}
		for range rapid.IntRange(1, 2).Draw(rt, "collections") {
			u, _ := urn.ParseURL(long(drawURL(rt, slices.Concat(worldLists, worldGlobs))))
			if !slices.Contains(v.Collections, u) {
				v.Collections = append(v.Collections, u)
			}
		}
		views[k.Scope.Derived] = v
		w.note("view %d = %v", i, v.Collections)
		w.clients = append(w.clients, &reachClient{worldClient: worldClient{key: k, view: &v}})
	}
	for _, g := range worldGlobs {
		w.clients = append(w.clients, &reachClient{worldClient: worldClient{key: derivedKey(long(g))}})
	}
	w.origins = newOrigins(t, Options{Views: views, Depth: reachDepth})
	defer func() {
		if failed := recover(); failed != nil {
			w.close()
			panic(failed)
		}
	}()
	w.globs = &globs{of: w.origins, says: map[string]cache.SetUpdate{}}
	for _, a := range known {
		p := Policy{NotFound: rapid.Bool().Draw(rt, "not found"), Unreachable: rapid.Bool().Draw(rt, "unreachable")}
		w.setPolicy(a, p)
		w.note("policy %s %+v", a, p)
	}
	for _, name := range worldNames {
		w.say(w.drawMember(rt, name))
	}
	for _, name := range worldLists {
		w.say(w.drawList(rt, name))
	}
	for _, name := range worldGlobs {
		w.drawSet(rt, name)
	}
	return w
}

func (w *reachWorld) note(format string, args ...any) {
	w.log = append(w.log, strings.ReplaceAll(fmt.Sprintf(format, args...), xdstype.Prefix, ""))
}

func (w *reachWorld) run(rt *rapid.T) {
	defer w.close()
	for range rapid.IntRange(5, 30).Draw(rt, "steps") {
		w.step(rt)
		w.globs.settle()
		w.checkAll()
	}
	for _, a := range slices.Sorted(maps.Keys(w.downs)) {
		w.up(a)
	}
	w.globs.settle()
	w.checkAll()
	for _, c := range w.clients {
		if c.set != nil {
			w.cache.Unwatch(c)
		}
	}
}

func (w *reachWorld) step(rt *rapid.T) {
	switch rapid.IntRange(0, 7).Draw(rt, "step") {
	case 0:
		w.say(w.drawMember(rt, rapid.SampledFrom(worldNames).Draw(rt, "name")))
	case 1, 2:
		w.say(w.drawList(rt, rapid.SampledFrom(worldLists).Draw(rt, "list")))
	case 3:
		w.drawSet(rt, rapid.SampledFrom(worldGlobs).Draw(rt, "glob"))
	case 4, 5:
		c := rapid.SampledFrom(w.clients).Draw(rt, "client")
		w.note("client of %s %s, or leaves", c.key.Scope.Derived, c.key.Name)
		if c.set != nil {
			w.cache.Unwatch(c)
			*c = reachClient{worldClient: worldClient{key: c.key, view: c.view}}
		} else {
			c.has, c.was = map[string]string{}, newMemory()
			c.set = w.cache.WatchSet(c.key, c)
		}
	default:
		a := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "authority")
		if _, down := w.downs[a]; down {
			w.up(a)
		} else {
			w.note("down %s", a)
			w.reach(a, true)
		}
	}
}

// up makes an authority reachable again. It then answers all requests, one by one. After each answer,
// and before the first, resources that are unavailable must stay as they were.
func (w *reachWorld) up(a string) {
	w.note("up %s", a)
	w.mu.Lock()
	delete(w.downs, a)
	requested := slices.SortedFunc(maps.Keys(w.requested), func(a, b cache.Key) int { return strings.Compare(a.Name, b.Name) })
	w.mu.Unlock()
	w.resolver.ReachabilityChanged()
	w.globs.silent = a
	for _, k := range requested {
		w.globs.settle()
		w.checkAll()
		switch _, said := w.globs.says[k.Name]; {
		case k.Scope.Authority != a:
		case said && w.globs.status(k) != cache.Requested:
			w.note("  %s is sent again", k.Name)
			w.cache.Apply(cache.Update{Scope: k.Scope, TypeURL: k.TypeURL, Sets: []cache.SetUpdate{w.globs.says[k.Name]}})
		case !said:
			w.note("  %s is sent again", k.Name)
			w.mu.Lock()
			w.unread = append(w.unread, k)
			w.mu.Unlock()
		}
	}
	w.globs.silent = ""
}

// drawURL draws one of the URLs, perhaps with an alternative.
func drawURL(rt *rapid.T, of []string) string {
	url := rapid.SampledFrom(of).Draw(rt, "url")
	if rapid.IntRange(0, 2).Draw(rt, "has alt") == 0 {
		url += "#alt=" + rapid.SampledFrom(of).Draw(rt, "alt")
	}
	return url
}

func (w *reachWorld) redirect(name, typeURL, to string) cache.Change {
	w.note("%s -> %s", name, to)
	return cache.Change{Name: long(name), Resource: cache.NewResource(cache.Spec{
		Name: long(name), TypeURL: typeURL, Value: mustMarshal(w.T, locator(w.T, long(to))), Redirect: long(to),
	})}
}

func (w *reachWorld) fresh() string { w.n++; return fmt.Sprint("v", w.n) }

// drawMember draws the state of a member.
func (w *reachWorld) drawMember(rt *rapid.T, name string) cache.Change {
	switch rapid.IntRange(0, 5).Draw(rt, "kind") {
	case 0:
		w.note("%s does not exist", name)
		return cache.Change{Name: long(name), Gone: true}
	case 1, 2:
		return w.redirect(name, xdstype.Locator, drawURL(rt, worldNames))
	}
	content := w.fresh()
	w.note("%s = %s", name, content)
	return cache.Change{Name: long(name), Resource: cache.NewResource(cache.Spec{
		Name: long(name), TypeURL: clusterType, Value: clusterNamed(w.T, long(name), content),
	})}
}

func (w *reachWorld) drawList(rt *rapid.T, name string) cache.Change {
	switch rapid.IntRange(0, 6).Draw(rt, "kind") {
	case 0:
		w.note("%s does not exist", name)
		return cache.Change{Name: long(name), Gone: true}
	case 1:
		return w.redirect(name, xdstype.Locator, drawURL(rt, worldLists))
	}
	entries, notes := [][]byte{}, []string{}
	for range rapid.IntRange(0, 3).Draw(rt, "entries") {
		switch rapid.IntRange(0, 5).Draw(rt, "entry") {
		case 0:
			inner, content := rapid.SampledFrom(slices.Concat(worldNames, []string{"old-style"})).Draw(rt, "inner"), w.fresh()
			entries = append(entries, inlineEntry(w.T, "", "1", anyOfCluster(w.T, longOr(inner), content)))
			notes = append(notes, inner+"="+content)
		default:
			to := drawURL(rt, worldNames)
			if rapid.Bool().Draw(rt, "of many") {
				to = drawURL(rt, slices.Concat(worldLists, worldGlobs))
			}
			entries = append(entries, locatorEntry(w.T, long(to)))
			notes = append(notes, to)
		}
	}
	w.note("%s = list of %s", name, strings.Join(notes, " "))
	return cache.Change{Name: long(name), Resource: cache.NewResource(cache.Spec{
		Name: long(name), TypeURL: collectionType, Value: collection(long(name), entries...).Value(),
	})}
}

func (w *reachWorld) drawSet(rt *rapid.T, glob string) {
	before, said := w.globs.says[long(glob)]
	u := cache.SetUpdate{Name: long(glob), Extent: cache.WholeIf(!said || before.Err != nil || rapid.Bool().Draw(rt, "full"))}
	w.note("%s, full %t:", glob, u.Extent.Full())
	for i := range 2 {
		name := glob[:len(glob)-1] + fmt.Sprint(i)
		if !u.Extent.Full() && rapid.Bool().Draw(rt, "stays") {
			continue
		}
		if c := w.drawMember(rt, name); !u.Extent.Full() || !c.Gone {
			u.Changes = append(u.Changes, c)
		}
	}
	w.globs.say(u)
}

func (w *reachWorld) checkAll() {
	for _, c := range w.clients {
		if c.set == nil {
			continue
		}
		if wrong := w.check(c); wrong != "" {
			wrongf("after\n%s\nclient of %s %s: %s", strings.Join(w.log, "\n"), c.key.Scope.Derived, short(c.key.Name), wrong)
		}
	}
}

// check compares a client's state with the plain evaluation.
func (w *reachWorld) check(c *reachClient) (wrong string) {
	c.set.Since(&c.SetWatch, func(m cache.Member) bool {
		switch {
		case m.News == cache.Removed:
			delete(c.has, m.Name)
		case m.Resource != nil:
			inner, content := contentOf(m.Resource)
			if inner != m.Name {
				wrong = fmt.Sprintf("%s says %s inside", m.Name, inner)
			}
			c.has[m.Name] = content
		}
		return true
	})
	if wrong != "" {
		return wrong
	}
	// What it could be: there is more than one if there are choices between what is out
	// of date.
	for tries := []map[string]bool{{}}; len(tries) > 0; tries = tries[1:] {
		p := &plain{origins: w.origins, was: c.was, is: newMemory(), others: tries[0]}
		want := p.client(&c.worldClient)
		status, err := c.set.Status()
		switch {
		case p.wrong != "" && wrong == "":
			wrong = p.wrong
		case p.wrong != "":
		case status == want.status && maps.Equal(c.has, want.members):
			c.was = p.is
			return ""
		case wrong == "":
			wrong = fmt.Sprintf("%v, %v, %v, want %v, %v", status, err, shortMap(c.has), want.status, shortMap(want.members))
		}
		for _, choice := range p.open {
			if next := maps.Clone(tries[0]); !next[choice] && len(next) < 3 {
				next[choice] = true
				tries = append(tries, next)
			}
		}
	}
	return wrong
}

func shortMap(m map[string]string) (all []string) {
	for name, content := range m {
		all = append(all, short(name)+"="+content)
	}
	slices.Sort(all)
	return all
}
