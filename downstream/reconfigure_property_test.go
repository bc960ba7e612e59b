package downstream

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// The streams apply the configurations on a separate goroutine, before or while other things happen.
func TestStreamsConvergeAfterNewConfigurations(t *testing.T) {
	for _, meanwhile := range []bool{false, true} {
		t.Run(fmt.Sprintf("meanwhile: %v", meanwhile), func(t *testing.T) { streamsConverge(t, meanwhile) })
	}
}

func streamsConverge(t *testing.T, meanwhile bool) {
	rapid.Check(t, func(t *rapid.T) {
		w := newReconfiguredWorld(rapid.SampledFrom([]int{1, 1000}).Draw(t, "idle topics"))
		defer w.cache.Close()
		w.meanwhile = meanwhile
		for i, form := range []string{deltaForm.name, sotwForm.name, deltaForm.name, sotwForm.name} {
			c := w.newClient(form, form+strconv.Itoa(i), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "cluster"))
			if rapid.Bool().Draw(t, "has many names") { // it waits for its turn
				c.pad = fewSubscriptions
			}
			w.clients = append(w.clients, c)
		}
		client := rapid.SampledFrom(w.clients)
		t.Repeat(map[string]func(*rapid.T){
			"change":               w.change,
			"answer":               w.answer,
			"request":              func(t *rapid.T) { client.Draw(t, "client").request(t) },
			"read":                 func(t *rapid.T) { client.Draw(t, "client").read(t) },
			"reconnect":            func(t *rapid.T) { client.Draw(t, "client").reconnect(t) },
			"configure":            w.reconfigure,
			"configure, otherwise": w.reconfigureAtRest,
		})
		w.rest(t)
		for _, c := range w.clients {
			c.compare(t)
			c.conn.close()
		}
		if n := w.openNames.Load(); n != 0 {
			t.Fatalf("%d Names are open when all clients have gone", n)
		}
	})
}

const reconfiguredGlob = "xdstp://known/cds/dir/*"

var (
	reconfiguredTypes = []string{clusterType, endpointType}
	reconfiguredNames = map[string][]string{
		clusterType:  {"a", "b", "c", "xdstp://known/cds/dir/x", "xdstp://known/cds/dir/y", cache.Wildcard, reconfiguredGlob},
		endpointType: {"a", "b", "c", "d", "xdstp://known/eds/x", "xdstp://known/eds/y"},
	}
	reconfiguredScopes = []cache.Scope{oldStyleScope("a"), oldStyleScope("b"), oldStyleScope("c"), {Authority: "known"}, {Authority: "other"}, {Derived: viewAuthority}}
)

// reconfiguredWorld is what origins say in each scope, and a relay with clients.
type reconfiguredWorld struct {
	cache     *cache.Cache
	server    *Server
	meaning   *meaning
	clients   []*reconfiguredClient
	facts     map[cache.Key]string // content; nothing of what does not exist
	versions  map[cache.Key]int
	openNames atomic.Int64
	meanwhile bool

	mu       sync.Mutex // guards what the cache's source notes
	asked    []cache.Key
	answered map[cache.Key]bool
}

func newReconfiguredWorld(idle int) *reconfiguredWorld {
	w := &reconfiguredWorld{meaning: new(meaning), facts: map[cache.Key]string{}, versions: map[cache.Key]int{}, answered: map[cache.Key]bool{}}
	w.cache = newTestCache(w, idle)
	w.server, _ = newTestServer(w.cache, DefaultMaxResponseBytes)
	w.configure()
	return w
}

func (w *reconfiguredWorld) configure() {
	m := w.meaning
	w.server.Reconfigure(func(c Client) Names {
		w.openNames.Add(1)
		return &countedTestNames{m.names(c), w}
	})
	if !w.meanwhile {
		w.reach()
	}
}

// countedTestNames counts when it is closed.
type countedTestNames struct {
	Names
	world *reconfiguredWorld
}

func (n *countedTestNames) Close() {
	n.world.openNames.Add(-1)
	n.Names.Close()
}

func (n *countedTestNames) Rights() Rights {
	if r, ok := n.Names.(Restricted); ok {
		return r.Rights()
	}
	return nil
}

// Start implements cache.Source.
func (w *reconfiguredWorld) Start(k cache.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, k)
}

// Refresh implements cache.Source.
func (w *reconfiguredWorld) Refresh(cache.Key) {}

// Stop implements cache.Source.
func (w *reconfiguredWorld) Stop(k cache.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.answered, k)
	w.asked = slices.DeleteFunc(w.asked, func(a cache.Key) bool { return a == k })
}

// says is what an origin says of a name.
func (w *reconfiguredWorld) says(k cache.Key) cache.Change {
	content := w.facts[k]
	if content == "" {
		return cache.Change{Name: k.Name, Gone: true}
	}
	return cache.Change{Name: k.Name, Resource: newTestResource(k.TypeURL, k.Name, "v"+strconv.Itoa(w.versions[k]), content)}
}

// inSet says that a set has a name, if that exists.
func inSet(set, name string) bool {
	if set == cache.Wildcard {
		return !urn.IsXdstp(name)
	}
	return strings.HasPrefix(name, strings.TrimSuffix(set, "*"))
}

func (w *reconfiguredWorld) change(t *rapid.T) {
	k := cache.Key{Scope: rapid.SampledFrom(reconfiguredScopes).Draw(t, "scope"), TypeURL: rapid.SampledFrom(reconfiguredTypes).Draw(t, "type")}
	k.Name = rapid.SampledFrom(reconfiguredNames[k.TypeURL]).Draw(t, "name")
	if k.IsSet() || urn.IsXdstp(k.Name) == k.Scope.OldStyle {
		t.Skip("no such resource")
	}
	w.versions[k]++
	w.facts[k] = rapid.SampledFrom([]string{"", "one", "two"}).Draw(t, "content")
	t.Logf("%s: %s %s is %q", k.Scope, shortName(k.TypeURL), k.Name, w.facts[k])
	u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	w.mu.Lock()
	if w.answered[k] {
		u.Changes = append(u.Changes, w.says(k))
	}
	for of := range w.answered {
		if of.IsSet() && of.Scope == k.Scope && of.TypeURL == k.TypeURL && inSet(of.Name, k.Name) {
			u.Sets = append(u.Sets, cache.SetUpdate{Name: of.Name, Changes: []cache.Change{w.says(k)}})
		}
	}
	w.mu.Unlock()
	w.cache.Apply(u)
}

// answer answers something that was asked for, or says that it cannot be had.
func (w *reconfiguredWorld) answer(t *rapid.T) {
	w.mu.Lock()
	n := len(w.asked)
	w.mu.Unlock()
	if n == 0 {
		t.Skip("nothing was asked for")
	}
	w.answerOne(t, rapid.IntRange(0, n-1).Draw(t, "which"), rapid.IntRange(0, 2).Draw(t, "fails") == 0)
}

func (w *reconfiguredWorld) answerOne(t *rapid.T, i int, fails bool) bool {
	w.mu.Lock()
	if i >= len(w.asked) {
		w.mu.Unlock()
		return false
	}
	k := w.asked[i]
	u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	var why *cache.Error
	if fails {
		why = &cache.Error{Code: codes.Unavailable, Message: "not now"}
	} else {
		w.asked = slices.Delete(w.asked, i, i+1)
		w.answered[k] = true
	}
	w.mu.Unlock()
	t.Logf("%s answers %s %s, failing: %v", k.Scope, shortName(k.TypeURL), k.Name, fails)
	switch {
	case !k.IsSet():
		change := w.says(k)
		if fails {
			change = cache.Change{Name: k.Name, Err: why}
		}
		u.Changes = append(u.Changes, change)
	case fails:
		u.Sets = append(u.Sets, cache.SetUpdate{Name: k.Name, Err: why})
	default:
		set := cache.SetUpdate{Name: k.Name, Extent: cache.Whole}
		for of, content := range w.facts {
			if of.Scope == k.Scope && of.TypeURL == k.TypeURL && inSet(k.Name, of.Name) && content != "" {
				set.Changes = append(set.Changes, w.says(of))
			}
		}
		u.Sets = append(u.Sets, set)
	}
	w.cache.Apply(u)
	return true
}

func (w *reconfiguredWorld) reconfigure(t *rapid.T) {
	w.draw(t)
	w.configure()
}

// draw draws the next configuration.
func (w *reconfiguredWorld) draw(t *rapid.T) {
	m := &meaning{clusters: map[string]string{}, authorities: map[string]string{}}
	for _, cluster := range []string{"a", "b"} {
		if to := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "partition of "+cluster); to != "" {
			m.clusters[cluster] = to
		}
	}
	switch rapid.IntRange(0, 4).Draw(t, "authority") {
	case 0:
		m.authorities["known"] = ""
	case 1, 2:
		m.authorities["known"] = "other"
	}
	if rapid.IntRange(0, 3).Draw(t, "view") == 0 {
		m.views = []string{reconfiguredGlob}
	}
	all := slices.Concat(reconfiguredNames[clusterType], reconfiguredNames[endpointType])
	m.denied = rapid.SliceOfN(rapid.SampledFrom(all), 0, 2).Draw(t, "denied")
	t.Logf("configuration: %+v", *m)
	w.meaning = m
}

// reach waits until the newest configuration has reached all streams.
func (w *reconfiguredWorld) reach() {
	for running := true; running; runtime.Gosched() {
		w.server.mu.Lock()
		running = w.server.running
		w.server.mu.Unlock()
	}
}

// rest has all origins answer, and all clients read everything.
func (w *reconfiguredWorld) rest(t *rapid.T) {
	w.reach()
	for busy := true; busy; {
		busy = false
		for w.answerOne(t, 0, false) {
			busy = true
		}
		for _, c := range w.clients {
			busy = c.readAll(t) || busy
		}
	}
}

// reconfigureAtRest brings a new configuration to clients that hold everything, while the origins change
// nothing: what is held and is there by both must stay, whatever is answered first.
func (w *reconfiguredWorld) reconfigureAtRest(t *rapid.T) {
	w.rest(t)
	for _, c := range w.clients {
		c.stays = map[string]map[string]bool{}
		for _, typeURL := range reconfiguredTypes {
			c.stays[typeURL] = map[string]bool{}
			for name := range c.of(typeURL).held {
				c.stays[typeURL][name] = c.has(typeURL, name)
			}
		}
	}
	w.draw(t)
	for _, c := range w.clients {
		for typeURL, stays := range c.stays {
			maps.DeleteFunc(stays, func(name string, is bool) bool { return !is || !c.has(typeURL, name) })
		}
	}
	w.configure()
	for range rapid.IntRange(0, 6).Draw(t, "steps") {
		w.mu.Lock()
		n := len(w.asked)
		w.mu.Unlock()
		if n > 0 && rapid.Bool().Draw(t, "answers") {
			w.answer(t)
			continue
		}
		rapid.SampledFrom(w.clients).Draw(t, "client").read(t)
	}
	w.rest(t)
	for _, c := range w.clients {
		c.stays = nil
	}
}

// reconfiguredClient is a client as it sees itself.
type reconfiguredClient struct {
	world   *reconfiguredWorld
	form    string
	id      string
	cluster string
	pad     int // so many further names of endpoints
	conn    *testClient
	types   map[string]*reconfiguredType
	stays   map[string]map[string]bool // what it must not lose now
}

type reconfiguredType struct {
	wants map[string]bool
	held  map[string]string // content by name
	// left are names that it has unsubscribed from, while a set covers them, since its last full state in SotW. Only the
	// next full state can lack them.
	left map[string]bool
}

func (w *reconfiguredWorld) newClient(form, id, cluster string) *reconfiguredClient {
	c := &reconfiguredClient{world: w, form: form, id: id, cluster: cluster, types: map[string]*reconfiguredType{}}
	c.connect()
	return c
}

func (c *reconfiguredClient) GoString() string { return c.id }

func (c *reconfiguredClient) connect() {
	c.conn = newTestClient(c.world.server, c.form, c.node())
}

func (c *reconfiguredClient) node() *corev3.Node { return &corev3.Node{Id: c.id, Cluster: c.cluster} }

func (c *reconfiguredClient) of(typeURL string) *reconfiguredType {
	of := c.types[typeURL]
	if of == nil {
		of = &reconfiguredType{wants: map[string]bool{}, held: map[string]string{}, left: map[string]bool{}}
		c.types[typeURL] = of
	}
	return of
}

// covers are what the client has requested by which it has a name.
func (of *reconfiguredType) covers(name string) (all []string) {
	for _, by := range slices.Sorted(maps.Keys(of.wants)) {
		if by == name || (cache.Key{Name: by}).IsSet() && inSet(by, name) {
			all = append(all, by)
		}
	}
	return all
}

// has says that the newest configuration gives the client a name. A client drops what it has of a name that is refused.
func (c *reconfiguredClient) has(typeURL, name string) bool {
	names := c.world.meaning.names(Client{Node: c.node()})
	if _, err := names.Key(typeURL, name); err != nil && c.of(typeURL).wants[name] {
		return false
	}
	for _, by := range c.of(typeURL).covers(name) {
		if k, err := names.Key(typeURL, by); err == nil {
			k.Name = name
			if c.world.facts[k] != "" {
				return true
			}
		}
	}
	return false
}

// refused says that some of what the client has requested means nothing, or may not be had, and covers a name;
// of all names if that is empty.
func (c *reconfiguredClient) refused(typeURL, name string) bool {
	names := c.world.meaning.names(Client{Node: c.node()})
	for by := range c.of(typeURL).wants {
		if name != "" && !slices.Contains(c.of(typeURL).covers(name), by) {
			continue
		}
		if name == "" && !(cache.Key{Name: by}).IsSet() {
			continue
		}
		if _, err := names.Key(typeURL, by); err != nil {
			return true
		}
	}
	return false
}

// request changes what the client wants of a type.
func (c *reconfiguredClient) request(t *rapid.T) {
	c.readAll(t) // so that nothing of before is on its way
	typeURL := rapid.SampledFrom(reconfiguredTypes).Draw(t, "type")
	of := c.of(typeURL)
	had := maps.Clone(of.wants)
	if rapid.IntRange(0, 2).Draw(t, "as others") == 0 && typeURL == endpointType {
		of.wants = map[string]bool{"a": true, "b": true, "c": true, "d": true}
	} else {
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(reconfiguredNames[typeURL]), 1, 3, rapid.ID[string]).Draw(t, "names") {
			if of.wants[name] {
				delete(of.wants, name)
			} else {
				of.wants[name] = true
			}
		}
	}
	if len(of.wants) == 0 {
		of.wants["a"] = true // nothing would be the wildcard
	}
	for i := range c.pad {
		if typeURL == endpointType {
			of.wants[fmt.Sprint("pad", i)] = true
		}
	}
	c.send(t, typeURL, had)
}

func (c *reconfiguredClient) send(t tb, typeURL string, had map[string]bool) {
	t.Helper()
	of := c.of(typeURL)
	for name := range of.held {
		if len(of.covers(name)) == 0 {
			delete(of.held, name)
		}
	}
	add, drop := without(of.wants, had), without(had, of.wants)
	if c.form == deltaForm.name {
		for _, name := range drop { // of which it is sent what the rest has
			delete(of.held, name)
		}
	} else {
		for _, name := range drop {
			of.left[name] = true
		}
	}
	if r, ok := t.(*rapid.T); ok {
		r.Logf("%s requests %v of %s", c.id, slices.Sorted(maps.Keys(of.wants)), shortName(typeURL))
	}
	var err error
	if c.form == deltaForm.name {
		err = c.conn.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: add, ResourceNamesUnsubscribe: drop})
	} else {
		err = c.acknowledge(typeURL)
	}
	if err != nil {
		t.Fatalf("%s: %v", c.id, err)
	}
}

func without(all, but map[string]bool) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !but[name] {
			names = append(names, name)
		}
	}
	return names
}

// acknowledge sends what the client wants of a type, with its newest nonce. SotW.
func (c *reconfiguredClient) acknowledge(typeURL string) error {
	m := c.conn.memory(typeURL)
	return c.conn.sotw(&discoveryv3.DiscoveryRequest{
		TypeUrl: typeURL, ResourceNames: slices.Sorted(maps.Keys(c.of(typeURL).wants)), ResponseNonce: m.nonce, VersionInfo: m.version,
	})
}

func (c *reconfiguredClient) readAll(t tb) (any bool) {
	t.Helper()
	for c.read(t) {
		any = true
	}
	return any
}

// read reads one response, and acknowledges it.
func (c *reconfiguredClient) read(t tb) bool {
	t.Helper()
	r := c.conn.read(t)
	if r == nil {
		return false
	}
	if log, ok := t.(*rapid.T); ok {
		log.Logf("%s reads %s", c.id, r)
	}
	of := c.of(r.typeURL)
	loses := func(name string) {
		if c.stays[r.typeURL][name] {
			t.Errorf("%s loses %s %s, which it has by the configuration before and by the one after", c.id, shortName(r.typeURL), name)
		}
		delete(of.held, name)
	}
	given := map[string]bool{}
	for _, res := range r.resources {
		given[res.name] = true
		of.held[res.name] = res.content
	}
	for _, name := range r.removed {
		loses(name)
	}
	for _, e := range r.errors {
		if e.code == codes.NotFound {
			loses(e.name)
		}
	}
	if c.form == sotwForm.name && r.typeURL == clusterType {
		for name := range of.held {
			if !given[name] {
				loses(name)
			}
		}
		clear(of.left)
	}
	var err error
	if c.form == deltaForm.name {
		err = c.conn.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.typeURL, ResponseNonce: r.nonce})
	} else {
		err = c.acknowledge(r.typeURL)
	}
	if err != nil {
		t.Fatalf("%s: %v", c.id, err)
	}
	return true
}

// reconnect begins with nothing.
func (c *reconfiguredClient) reconnect(t *rapid.T) {
	c.conn.close()
	c.connect()
	for _, typeURL := range reconfiguredTypes {
		of := c.of(typeURL)
		of.held = map[string]string{}
		if len(of.wants) > 0 {
			c.send(t, typeURL, nil)
		}
	}
}

// compare compares what the client holds with what a new stream is sent.
func (c *reconfiguredClient) compare(t *rapid.T) {
	t.Helper()
	fresh := c.world.newClient(c.form, c.id+" anew", c.cluster)
	defer fresh.conn.close()
	for _, typeURL := range reconfiguredTypes {
		if of := c.of(typeURL); len(of.wants) > 0 {
			fresh.of(typeURL).wants = maps.Clone(of.wants)
			fresh.send(t, typeURL, nil)
		}
	}
	for busy := true; busy; {
		busy = fresh.readAll(t)
		for c.world.answerOne(t, 0, false) {
			busy = true
		}
	}
	for _, typeURL := range reconfiguredTypes {
		if c.form == sotwForm.name && typeURL == clusterType && c.refused(typeURL, "") {
			continue // it is sent no state in which members would be missing
		}
		has, want := c.of(typeURL).held, fresh.of(typeURL).held
		for name, content := range want {
			if has[name] != content {
				t.Errorf("%s holds %q as %s %s, a new stream %q", c.id, has[name], shortName(typeURL), name, content)
			}
		}
		for name, content := range has {
			if _, ok := want[name]; !ok && !c.refused(typeURL, name) && !c.of(typeURL).left[name] {
				t.Errorf("%s holds %q as %s %s, a new stream nothing", c.id, content, shortName(typeURL), name)
			}
		}
	}
	scopes := func(c *reconfiguredClient) map[cache.Scope]bool {
		all := map[cache.Scope]bool{}
		for scope := range c.conn.st.scopes.all() {
			all[scope] = true
		}
		return all
	}
	if has, want := scopes(c), scopes(fresh); !maps.Equal(has, want) {
		t.Errorf("%s uses the scopes %v, a new stream %v", c.id, has, want)
	}
}
