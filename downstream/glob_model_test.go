package downstream

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// TestGlobClientsConverge holds, for any interleaving of what origins do, redirects
// among it, and of what clients do that subscribe to globs, to names in them and to
// a wildcard that gives such names too, with versions of an earlier stream or
// without: when all has been read, a client has exactly what there is of what it
// subscribed to. Some have a parameter in their names that the authority is not asked
// with, and get all in these names. No redirect ever reaches it, and (see received.check) no response
// has anything twice.
func TestGlobClientsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := &globOrigin{answered: map[cache.Key]bool{}, facts: map[bool]map[string]globFact{true: {}, false: {}}}
		o.cache = cache.New(o, cache.Options{Linger: time.Hour, IdleEntries: 1000, Tombstones: cache.Tombstones{TTL: time.Hour, Limit: 1000}})
		defer o.cache.Close()
		server, _ := newTestServer(o.cache, rapid.SampledFrom([]int{DefaultMaxResponseBytes, 300}).Draw(t, "limit"))
		var clients []*globClient
		for i, form := range []string{deltaForm.name, sotwForm.name, deltaForm.name, deltaForm.name, sotwForm.name} {
			c := &globClient{server: server, form: form, id: form + strconv.Itoa(i), silent: i == 2 || i == 3, wants: map[string]bool{}, held: map[string]heldByModel{}, byOther: map[string]bool{}}
			if i > 2 {
				c.own = "?id=" + strconv.Itoa(i)
			}
			c.connect(t)
			clients = append(clients, c)
		}
		client := rapid.SampledFrom(clients)
		t.Repeat(map[string]func(*rapid.T){
			"origin changes": o.change,
			"origin answers": o.answer,
			"request":        func(t *rapid.T) { client.Draw(t, "client").request(t) },
			"read":           func(t *rapid.T) { client.Draw(t, "client").read(t) },
			"reconnect":      func(t *rapid.T) { client.Draw(t, "client").connect(t) },
		})
		for busy := true; busy; {
			busy = false // moving on to what redirects lead to asks for more
			for len(o.asked) > 0 {
				o.answerOne(t, 0)
				busy = true
			}
			for _, c := range clients {
				for c.read(t) {
					busy = true
				}
			}
			busy = busy || len(o.asked) > 0
		}
		for _, c := range clients {
			if want := o.view(c.wants, c.form == deltaForm.name, c.own); !maps.Equal(c.contents(), want) {
				t.Fatalf("%s wants %v and has %v, want %v", c.id, slices.Sorted(maps.Keys(c.wants)), c.contents(), want)
			}
		}
	})
}

const (
	fooGlob = "xdstp://known/envoy.config.cluster.v3.Cluster/foo/*"
	barGlob = "xdstp://known/envoy.config.cluster.v3.Cluster/bar/*"
	fooA    = "xdstp://known/envoy.config.cluster.v3.Cluster/foo/a"
	fooB    = "xdstp://known/envoy.config.cluster.v3.Cluster/foo/b"
	barA    = "xdstp://known/envoy.config.cluster.v3.Cluster/bar/a"
)

var (
	globModelNames = []string{"old", fooA, fooB, barA}
	globModelWants = []string{cache.Wildcard, fooGlob, barGlob, fooA, fooB, barA, "old"}
)

// globFact is what an origin has under a name.
type globFact struct {
	content  string
	version  string
	redirect bool // it says a redirect, to something of that content
}

// globOrigin is two of them: that of the wildcard and of old-style names, and the
// authority, with what follows its redirects.
type globOrigin struct {
	cache    *cache.Cache
	asked    []cache.Key
	answered map[cache.Key]bool
	facts    map[bool]map[string]globFact // by whether it is the old-style one
	counter  int
}

// Start implements cache.Source.
func (o *globOrigin) Start(k cache.Key) { o.asked = append(o.asked, k) }

// Refresh implements cache.Source.
func (o *globOrigin) Refresh(cache.Key) {}

// Stop implements cache.Source.
func (o *globOrigin) Stop(k cache.Key) {
	delete(o.answered, k)
	o.asked = slices.DeleteFunc(o.asked, func(a cache.Key) bool { return a == k })
}

// view is what a client has that wants these. To a delta client a name that does not
// exist is gone, also if its wildcard gives something under it; a full state has that.
// own is that of the client.
func (o *globOrigin) view(wants map[string]bool, delta bool, own string) map[string]string {
	view := map[string]string{}
	take := func(as, name string, oldStyle bool) {
		if f, ok := o.facts[oldStyle][name]; ok {
			view[as] = f.content
		}
	}
	for _, name := range globModelNames {
		if wants[cache.Wildcard] {
			take(name, name, true)
		}
		as := withOwn(name, own)
		if wants[globIn(as)] {
			take(as, name, false)
		}
		if wants[as] {
			if delta {
				delete(view, as)
			}
			take(as, name, !urn.IsXdstp(name))
		}
	}
	return view
}

func (o *globOrigin) change(t *rapid.T) {
	oldStyle := rapid.Bool().Draw(t, "old-style origin")
	name := rapid.SampledFrom(globModelNames).Draw(t, "name")
	if !oldStyle && name == "old" {
		return
	}
	content := rapid.SampledFrom([]string{"", "one", "two", strings.Repeat("x", 100)}).Draw(t, "content")
	o.counter++
	if content == "" {
		delete(o.facts[oldStyle], name)
	} else {
		redirect := !oldStyle && rapid.IntRange(0, 3).Draw(t, "redirects") == 0
		if oldStyle {
			content = "old " + content // else nobody could tell them apart
		}
		o.facts[oldStyle][name] = globFact{content, "v" + strconv.Itoa(o.counter), redirect}
	}
	var sent []cache.Key
	for k := range o.answered {
		if k.Scope.OldStyle == oldStyle && (k.Name == name || k.IsSet() && (oldStyle || k.Name == globIn(name))) {
			sent = append(sent, k)
		}
	}
	slices.SortFunc(sent, func(a, b cache.Key) int { return strings.Compare(a.Name+a.Scope.Derived, b.Name+b.Scope.Derived) })
	for _, k := range sent {
		if k.IsSet() && rapid.Bool().Draw(t, "full") {
			o.sendAll(t, k)
			continue
		}
		u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
		if k.IsSet() {
			u.Sets = []cache.SetUpdate{{Name: k.Name, Changes: []cache.Change{o.of(k, name)}}}
		} else {
			u.Changes = []cache.Change{o.of(k, name)}
		}
		o.cache.Apply(u)
	}
	t.Logf("origin (old style: %v) has %s = %v, and sends %v", oldStyle, name, o.facts[oldStyle][name], sent)
}

// of is what is said of a name where k is.
func (o *globOrigin) of(k cache.Key, name string) cache.Change {
	f, ok := o.facts[k.Scope.OldStyle][name]
	switch {
	case !ok:
		return cache.Change{Name: name}
	case f.redirect && k.Scope.Derived == "":
		return cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{
			Name: name, Version: f.version, TypeURL: xdstype.Locator, Value: []byte{}, Redirect: "xdstp://other/x",
		})}
	}
	return cache.Change{Name: name, Resource: newTestResource(clusterType, name, f.version, f.content)}
}

// sendAll sends the cache all there is of k.
func (o *globOrigin) sendAll(t *rapid.T, k cache.Key) {
	u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	if !k.IsSet() {
		u.Changes = []cache.Change{o.of(k, k.Name)}
	} else {
		set := cache.SetUpdate{Name: k.Name, Extent: cache.Whole}
		for _, name := range globModelNames {
			if c := o.of(k, name); c.Resource != nil && (k.Name == cache.Wildcard || k.Name == globIn(name)) {
				set.Changes = append(set.Changes, c)
			}
		}
		u.Sets = []cache.SetUpdate{set}
	}
	t.Logf("origin sends all of %v", k)
	o.cache.Apply(u)
}

func (o *globOrigin) answer(t *rapid.T) {
	if len(o.asked) == 0 {
		t.Skip("nothing was asked")
	}
	i := rapid.IntRange(0, len(o.asked)-1).Draw(t, "question")
	if rapid.IntRange(0, 3).Draw(t, "fails") > 0 {
		o.answerOne(t, i)
		return
	}
	k, err := o.asked[i], &cache.Error{Code: codes.Unavailable, Message: "not now"}
	u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	if k.IsSet() {
		u.Sets = []cache.SetUpdate{{Name: k.Name, Err: err}}
	} else {
		u.Changes = []cache.Change{{Name: k.Name, Err: err}}
	}
	t.Logf("origin fails %v", k)
	o.cache.Apply(u)
}

func (o *globOrigin) answerOne(t *rapid.T, i int) {
	k := o.asked[i]
	o.asked = slices.Delete(o.asked, i, i+1)
	o.answered[k] = true
	o.sendAll(t, k)
}

// globClient is a client that knows which name is in which glob, and reads what it
// is sent at once.
type globClient struct {
	server *Server
	form   string
	id     string
	// silent: of what it has by a glob alone it does not say that it holds it, as
	// Envoy does not. Of the rest (byOther) a glob cannot know.
	silent  bool
	byOther map[string]bool
	// own are parameters of the client's own, in all its xdstp names.
	own string

	conn  *testClient
	wants map[string]bool
	held  map[string]heldByModel
}

// GoString keeps rapid's reports short.
func (c *globClient) GoString() string { return c.id }

func withOwn(name, own string) string {
	if urn.IsXdstp(name) {
		return name + own
	}
	return name
}

func (c *globClient) contents() map[string]string {
	contents := map[string]string{}
	for name, h := range c.held {
		contents[name] = h.content
	}
	return contents
}

// prune drops what nothing gives that the client wants. Of what it does not say that
// it holds, only the glob knows by which it does.
func (c *globClient) prune() {
	maps.DeleteFunc(c.held, func(name string, _ heldByModel) bool {
		if c.silent && !c.wants[globIn(name)] && !c.byOther[name] {
			return true
		}
		return !c.wants[name] && !c.wants[globIn(name)] && !c.wants[cache.Wildcard]
	})
}

func (c *globClient) connect(t *rapid.T) {
	if c.conn != nil {
		c.conn.close()
	}
	c.conn = newTestClient(c.server, c.form, &corev3.Node{Id: c.id})
	t.Logf("%s connects, wants %v and has %v", c.id, c.wants, c.held)
	if c.prune(); len(c.wants) == 0 {
		return
	}
	names := slices.Sorted(maps.Keys(c.wants))
	if c.form == sotwForm.name {
		clear(c.held) // it takes the first full state for all
		c.send(t, &discoveryv3.DiscoveryRequest{ResourceNames: names})
		return
	}
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: names, InitialResourceVersions: map[string]string{}}
	for name, h := range c.held {
		if !c.silent || !c.wants[globIn(name)] || c.byOther[name] {
			req.InitialResourceVersions[name] = h.version
		}
	}
	if err := c.conn.delta(req); err != nil {
		t.Fatal(err)
	}
}

func (c *globClient) request(t *rapid.T) {
	draw := func(label string) []string {
		names := rapid.SliceOfN(rapid.SampledFrom(globModelWants), 0, 3).Draw(t, label)
		for i, name := range names {
			names[i] = withOwn(name, c.own)
		}
		return names
	}
	add, drop := draw("subscribe"), draw("unsubscribe")
	if len(add)+len(drop) == 0 {
		return // which would be a wildcard
	}
	t.Logf("%s subscribes to %v and unsubscribes from %v", c.id, add, drop)
	before := maps.Clone(c.wants)
	for _, name := range drop {
		delete(c.wants, name)
	}
	if c.form == deltaForm.name {
		c.prune() // before it is answered as to the rest
	}
	for _, name := range add {
		c.wants[name] = true
	}
	if c.form == deltaForm.name {
		if err := c.conn.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: add, ResourceNamesUnsubscribe: drop}); err != nil {
			t.Fatal(err)
		}
		return
	}
	if len(c.wants)+len(before) == 0 {
		return // no names would be a wildcard
	}
	for name := range before {
		if !c.wants[name] {
			// Nobody answers as to what it has by that, and may have by something else.
			c.connect(t)
			return
		}
	}
	c.sendSotW(t)
}

// sendSotW says what the client wants, and answers what it has read.
func (c *globClient) sendSotW(t *rapid.T) {
	m := c.conn.memory(clusterType)
	c.send(t, &discoveryv3.DiscoveryRequest{ResourceNames: slices.Sorted(maps.Keys(c.wants)), ResponseNonce: m.nonce, VersionInfo: m.version})
}

func (c *globClient) send(t *rapid.T, req *discoveryv3.DiscoveryRequest) {
	req.TypeUrl = clusterType
	if err := c.conn.sotw(req); err != nil {
		t.Fatal(err)
	}
}

// read takes a response, and answers it.
func (c *globClient) read(t *rapid.T) bool {
	r := c.conn.read(t)
	if r == nil {
		return false
	}
	t.Logf("%s reads %s", c.id, r)
	for _, res := range r.resources {
		if res.redirect {
			t.Fatalf("%s was sent a redirect:\n%s", c.id, r)
		}
	}
	if c.form == sotwForm.name {
		clear(c.held)
	}
	for _, res := range r.resources {
		c.held[res.name] = heldByModel{content: res.content, version: res.version}
		c.byOther[res.name] = c.wants[res.name] || c.wants[cache.Wildcard]
	}
	for _, name := range r.removed {
		delete(c.held, name)
	}
	if c.form == sotwForm.name {
		c.sendSotW(t)
	} else if err := c.conn.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: c.conn.memory(clusterType).nonce}); err != nil {
		t.Fatal(err)
	}
	return true
}

func globIn(name string) string {
	glob, _ := globNamed(name)
	return glob
}
