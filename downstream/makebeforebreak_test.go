package downstream

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// xDS: "Eventual consistency considerations": a listener comes before the route configuration that it names, so only
// route configurations of accepted listeners count. Removals go in reverse order, so the two may be removed together,
// the route configuration first. Nothing names a listener, a scoped route or a virtual host: one that is removed goes with
// the first new ones. So a client that applies the removals first, and refuses two with one address, key or domain, refuses
// none.
func TestMakeBeforeBreak(t *testing.T) {
	for _, asks := range []struct {
		name string
		of   func(names []string) *rapid.Generator[[]string]
	}{
		{"wildcard", func([]string) *rapid.Generator[[]string] { return rapid.Just([]string{}) }},
		{"names", func(names []string) *rapid.Generator[[]string] { return rapid.Just(names) }},
		{"names and wildcard", func(names []string) *rapid.Generator[[]string] { return rapid.Just(append(names, cache.Wildcard)) }},
		{"any of these for each type", func(names []string) *rapid.Generator[[]string] {
			return rapid.SampledFrom([][]string{{}, names, append(names, cache.Wildcard), {cache.Wildcard}})
		}},
	} {
		for _, form := range []string{deltaForm.name, sotwForm.name} {
			for _, limit := range []int{DefaultMaxResponseBytes, 400} {
				t.Run(fmt.Sprintf("%s/%s/%d", asks.name, form, limit), func(t *testing.T) {
					rapid.Check(t, func(t *rapid.T) { makeBeforeBreak(t, form, limit, asks.of) })
				})
			}
		}
	}
}

func makeBeforeBreak(t *rapid.T, form string, limit int, asks func([]string) *rapid.Generator[[]string]) {
	o := newOrderlyOrigin(rapid.SampledFrom([]string{deltaForm.name, sotwForm.name}).Draw(t, "upstream"))
	defer o.cache.Close()
	server, _ := newTestServer(o.cache, limit)
	o.steps(t)
	var clients []*orderlyClient
	for i := range 2 {
		c := &orderlyClient{
			server: server, cuts: limit < DefaultMaxResponseBytes, origin: o, form: form, id: fmt.Sprint(form, i),
			held: map[string]map[string]string{}, asks: map[string][]string{}, resumed: map[string]bool{},
		}
		for _, typeURL := range c.types() {
			c.held[typeURL] = map[string]string{}
			c.asks[typeURL] = asks(o.names(typeURL)).Draw(t, c.id+" asks for")
		}
		c.connect(t)
		clients = append(clients, c)
	}
	client := rapid.SampledFrom(clients)
	t.Repeat(map[string]func(*rapid.T){
		"step":      o.step,
		"steps":     o.steps,
		"read":      func(t *rapid.T) { client.Draw(t, "client").read(t) },
		"answer":    func(t *rapid.T) { client.Draw(t, "client").answer(t) },
		"repeat":    func(t *rapid.T) { client.Draw(t, "client").repeat(t) },
		"reconnect": func(t *rapid.T) { client.Draw(t, "client").reconnect(t) },
	})
	for _, c := range clients {
		for c.read(t) || c.answer(t) {
		}
		c.compare(t)
	}
}

// orderlyOrigin is an origin whose every state is consistent.
type orderlyOrigin struct {
	cache *cache.Cache
	asked []cache.Key
	// state has the contents by type URL and name. That of a route is the cluster
	// that it names, that of a listener the route, either with a number.
	state map[string]map[string]string
	count int
	// form is that of the control plane: in SotW, each update of a set is a full state. There are no virtual hosts in SotW.
	form string
}

var orderlyNames = map[string][]string{
	clusterType:  {"c0", "c1", "c2", "c3"},
	endpointType: {"c0", "c1", "c2", "c3"},
	listenerType: {"l0", "l1", "l2"},
	routeType:    {"r0", "r1", "r2"},

	scopedRouteType: {"s0", "s1", "s2"},
	virtualHostType: {"r/v0", "r/v1", "r/v2"},
}

func newOrderlyOrigin(form string) *orderlyOrigin {
	o := &orderlyOrigin{form: form, state: map[string]map[string]string{}}
	for typeURL := range orderlyNames {
		o.state[typeURL] = map[string]string{}
	}
	o.cache = newTestCache(o, 1000)
	return o
}

func (*orderlyOrigin) types() []string {
	return []string{clusterType, endpointType, listenerType, routeType, scopedRouteType, virtualHostType}
}

// claimTypes are the types of which no two resources have the same claim: see encodeOf.
func claimTypes() []string { return []string{listenerType, scopedRouteType, virtualHostType} }

func (*orderlyOrigin) names(typeURL string) []string { return slices.Clone(orderlyNames[typeURL]) }

// Start implements cache.Source.
func (o *orderlyOrigin) Start(k cache.Key) { o.asked = append(o.asked, k) }

// Refresh implements cache.Source.
func (o *orderlyOrigin) Refresh(cache.Key) {}

// Stop implements cache.Source.
func (o *orderlyOrigin) Stop(cache.Key) {}

// step is one update that leaves the state consistent.
func (o *orderlyOrigin) step(t *rapid.T) {
	typeURL := rapid.SampledFrom(o.types()).Draw(t, "type")
	full := o.form == sotwForm.name && typeURL != virtualHostType
	if !full { // also the first answer on a stream is one
		full = rapid.IntRange(0, 3).Draw(t, "full") == 0
	}
	var changed []string
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(o.names(typeURL)), 1, 2, rapid.ID).Draw(t, "names") {
		content, ok := o.next(t, typeURL, name)
		if !ok {
			continue
		}
		if content == "" {
			delete(o.state[typeURL], name)
		} else {
			o.state[typeURL][name] = content
		}
		changed = append(changed, name)
	}
	if len(changed) == 0 && !full {
		return
	}
	t.Logf("origin: %s %v of %v", shortName(typeURL), changed, o.state[typeURL])
	u := cache.Update{Scope: oldStyleScope(""), TypeURL: typeURL}
	set := cache.SetUpdate{Name: cache.Wildcard, Extent: cache.WholeIf(full)}
	for _, name := range changed {
		u.Changes = append(u.Changes, o.change(typeURL, name))
	}
	if full {
		o.count++
		set.Origin = cache.NewOriginVersion(nil, fmt.Sprint("state", o.count))
		set.Changes = o.everything(typeURL)
	} else {
		set.Changes = u.Changes
	}
	u.Sets = []cache.SetUpdate{set}
	o.cache.Apply(u)
}

func (o *orderlyOrigin) steps(t *rapid.T) {
	for range rapid.IntRange(2, 8).Draw(t, "steps") {
		o.step(t)
	}
}

// next draws what may become of a resource, "" for its end, and says whether
// anything may.
func (o *orderlyOrigin) next(t *rapid.T, typeURL, name string) (content string, ok bool) {
	o.count++
	_, exists := o.state[typeURL][name]
	named := o.named(typeURL, name)
	if exists && !named && rapid.Bool().Draw(t, "ends") {
		return "", true
	}
	switch typeURL {
	case routeType:
		targets := []string{"nowhere"}
		for cluster := range o.state[clusterType] {
			if _, ok := o.state[endpointType][cluster]; ok {
				targets = append(targets, cluster)
			}
		}
		slices.Sort(targets)
		return fmt.Sprintf("%s %d", rapid.SampledFrom(targets).Draw(t, "cluster"), o.count), true
	case listenerType:
		targets := append(slices.Sorted(maps.Keys(o.state[routeType])), "nowhere")
		return fmt.Sprintf("%s %d %s", rapid.SampledFrom(targets).Draw(t, "route"), o.count, o.freeClaim(t, typeURL, name)), true
	case scopedRouteType, virtualHostType:
		return fmt.Sprintf("%d %s", o.count, o.freeClaim(t, typeURL, name)), true
	}
	return fmt.Sprintf("%d %s", o.count, strings.Repeat("x", rapid.SampledFrom([]int{0, 100}).Draw(t, "size"))), true
}

// freeClaim draws a claim that no other resource of the type has.
func (o *orderlyOrigin) freeClaim(t *rapid.T, typeURL, name string) string {
	free := []string{"at-80", "at-81", "at-82", "at-83"}
	for other, content := range o.state[typeURL] {
		if other != name {
			free = slices.DeleteFunc(free, func(a string) bool { return a == claim(content) })
		}
	}
	return rapid.SampledFrom(free).Draw(t, "claim")
}

// named says whether a resource is needed by another one.
func (o *orderlyOrigin) named(typeURL, name string) bool {
	by := map[string]string{clusterType: routeType, endpointType: routeType, routeType: listenerType}[typeURL]
	for _, content := range o.state[by] {
		if target(content) == name {
			return true
		}
	}
	return false
}

// target is what a route's or a listener's content names.
func target(content string) string {
	name, _, _ := strings.Cut(content, " ")
	return name
}

func (o *orderlyOrigin) change(typeURL, name string) cache.Change {
	content, ok := o.state[typeURL][name]
	if !ok {
		return cache.Change{Name: name, Gone: true}
	}
	return cache.Change{Name: name, Resource: newTestResource(typeURL, name, "v "+content, content)}
}

func (o *orderlyOrigin) everything(typeURL string) (all []cache.Change) {
	for _, name := range slices.Sorted(maps.Keys(o.state[typeURL])) {
		all = append(all, o.change(typeURL, name))
	}
	return all
}

// answer sends all that was requested since the last time.
func (o *orderlyOrigin) answer() {
	for _, k := range o.asked {
		u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
		if k.Name == cache.Wildcard {
			u.Sets = []cache.SetUpdate{{Name: k.Name, Extent: cache.Whole, Changes: o.everything(k.TypeURL)}}
		} else {
			u.Changes = []cache.Change{o.change(k.TypeURL, k.Name)}
		}
		o.cache.Apply(u)
	}
	o.asked = nil
}

// orderlyClient is a client that subscribes to everything, by names, by wildcard
// or both, and reads and answers when it comes to it.
type orderlyClient struct {
	server *Server
	origin *orderlyOrigin
	form   string
	id     string
	asks   map[string][]string // by type URL

	conn       *testClient
	moment     map[string]map[string]string // the origin's state, of which the newest response is
	held       map[string]map[string]string // contents by type URL and name
	leftIn     map[string]bool              // routes
	resumed    map[string]bool              // it has resources of these types from an earlier stream
	cuts       bool                         // its responses are cut for size
	unanswered []*received
	answered   map[string]*received // the last one, by type URL
}

// GoString keeps rapid's reports short.
func (c *orderlyClient) GoString() string { return c.id }

// types are those that the client may ask for: there are no virtual hosts in SotW.
func (c *orderlyClient) types() []string {
	all := c.origin.types()
	if c.form == sotwForm.name {
		all = slices.DeleteFunc(all, func(typeURL string) bool { return typeURL == virtualHostType })
	}
	return all
}

// connect asks for everything on a new stream, in the order of the types.
func (c *orderlyClient) connect(t *rapid.T) {
	t.Logf("%s connects, asking for %v", c.id, c.asks)
	c.conn = newTestClient(c.server, c.form, &corev3.Node{Id: c.id})
	c.unanswered, c.answered = nil, map[string]*received{}
	for _, typeURL := range c.types() {
		if c.form == sotwForm.name {
			c.send(t, typeURL, nil, false)
			continue
		}
		req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: c.asks[typeURL], InitialResourceVersions: map[string]string{}}
		for name, content := range c.held[typeURL] {
			req.InitialResourceVersions[name] = "v " + content
		}
		if err := c.conn.delta(req); err != nil {
			t.Fatal(err)
		}
	}
	c.origin.answer()
}

// reconnect is for delta only: nobody knows what a SotW client still holds.
func (c *orderlyClient) reconnect(t *rapid.T) {
	if c.form == sotwForm.name {
		t.Skip("SotW")
	}
	c.conn.close()
	c.connect(t)
	for _, typeURL := range claimTypes() {
		c.resumed[typeURL] = len(c.held[typeURL]) > 0
	}
}

// send sends what answers a response (nil: none).
func (c *orderlyClient) send(t *rapid.T, typeURL string, r *received, rejects bool) {
	t.Logf("%s sends %s for %v (rejects: %v)", c.id, shortName(typeURL), r, rejects)
	var nonce, version string
	if r != nil {
		nonce, version = r.nonce, r.version
	}
	var no *statuspb.Status
	if rejects {
		no = &statuspb.Status{Message: "no"}
	}
	var err error
	if c.form == deltaForm.name {
		err = c.conn.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ErrorDetail: no})
	} else {
		err = c.conn.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, VersionInfo: version, ErrorDetail: no, ResourceNames: c.asks[typeURL]})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// answer answers the oldest response that it has read.
func (c *orderlyClient) answer(t *rapid.T) bool {
	if len(c.unanswered) == 0 {
		return false
	}
	r := c.unanswered[0]
	c.unanswered = c.unanswered[1:]
	c.answered[r.typeURL] = r
	c.send(t, r.typeURL, r, rapid.IntRange(0, 5).Draw(t, "rejects") == 0)
	return true
}

// repeat says again what it wants of a type: in SotW with a nonce that may be
// stale by now, in delta as if it had forgotten what it was sent.
func (c *orderlyClient) repeat(t *rapid.T) {
	typeURL := rapid.SampledFrom(c.types()).Draw(t, "type")
	if c.form == sotwForm.name {
		c.send(t, typeURL, c.answered[typeURL], false)
		return
	}
	names := c.asks[typeURL]
	if len(names) == 0 {
		names = []string{cache.Wildcard}
	}
	t.Logf("%s subscribes again to %s %v", c.id, shortName(typeURL), names)
	if err := c.conn.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names}); err != nil {
		t.Fatal(err)
	}
}

// read takes the next response, and sees that nothing that the client holds
// leads nowhere then.
func (c *orderlyClient) read(t *rapid.T) bool {
	if c.conn.follows == nil { // otherwise the next response was composed together with the last one
		c.moment = map[string]map[string]string{}
		for typeURL, contents := range c.origin.state {
			c.moment[typeURL] = maps.Clone(contents)
		}
	}
	r := c.conn.read(t)
	if r == nil {
		return false
	}
	t.Logf("%s reads %s", c.id, r)
	c.unanswered = append(c.unanswered, r)
	before := c.held[r.typeURL]
	after := maps.Clone(before)
	full := c.conn.st.session(r.typeURL).Inspect().Full
	if full {
		after = map[string]string{}
	}
	for _, res := range r.resources {
		after[res.name] = res.content
	}
	for _, name := range r.removed {
		delete(after, name)
	}
	for _, e := range r.errors {
		if e.code == codes.NotFound {
			delete(after, e.name)
		}
	}
	c.held[r.typeURL] = after
	// In SotW, only a full state removes anything at once.
	claims := slices.Contains(claimTypes(), r.typeURL) && (full || c.form == deltaForm.name)
	if claims {
		c.accept(t, r, before, after)
	}
	if claims && slices.ContainsFunc(r.resources, func(res receivedResource) bool { return before[res.name] != res.content }) {
		for _, name := range slices.Sorted(maps.Keys(after)) {
			if _, exists := c.moment[r.typeURL][name]; !exists {
				t.Fatalf("%s still holds %s, whose claim a new one may need, after:\n%s", c.id, name, r)
			}
		}
	}
	if r.typeURL == routeType {
		// A removed member that is left in a full state is as it was last, which
		// may be newer than what the client had, and name what is gone already.
		// It is the same in each further state that it is left in.
		leftIn := map[string]bool{}
		for name := range after {
			_, exists := c.moment[routeType][name]
			leftIn[name] = !exists && (before[name] != after[name] || c.leftIn[name])
		}
		c.leftIn = leftIn
	}
	for _, route := range slices.Sorted(maps.Keys(c.held[routeType])) {
		cluster := target(c.held[routeType][route])
		if cluster == "nowhere" || c.leftIn[route] {
			continue
		}
		for _, typeURL := range []string{clusterType, endpointType} {
			if _, ok := c.held[typeURL][cluster]; !ok {
				t.Fatalf("%s holds %s, which names %s, without its %s after:\n%s", c.id, route, cluster, shortName(typeURL), r)
			}
		}
	}
	for _, listener := range slices.Sorted(maps.Keys(c.held[listenerType])) {
		if _, exists := c.moment[listenerType][listener]; !exists {
			continue
		}
		route := target(c.held[listenerType][listener])
		_, had := before[route]
		if _, has := after[route]; r.typeURL == routeType && had && !has {
			t.Fatalf("%s holds %s, which names %s, and loses that with:\n%s", c.id, listener, route, r)
		}
	}
	return true
}

// accept sees that the client, which is Envoy, refuses nothing because of a claim that another resource has, in whatever
// version. It applies the removals first, and then one Listener after another; scoped routes and virtual hosts together.
func (c *orderlyClient) accept(t *rapid.T, r *received, before, after map[string]string) {
	if slices.ContainsFunc(c.asks[r.typeURL], func(name string) bool { return name != cache.Wildcard }) && r.typeURL != virtualHostType {
		return // Envoy requests all Listeners and scoped routes
	}
	if c.cuts {
		return // a resource may come in a piece before that in which another one gives its claim up
	}
	if c.resumed[r.typeURL] {
		// Nobody knows the claims of the versions that it has from an earlier stream.
		c.resumed[r.typeURL] = !maps.Equal(after, c.moment[r.typeURL])
		return
	}
	has := maps.Clone(before)
	maps.DeleteFunc(has, func(name, _ string) bool { return after[name] == "" })
	for _, name := range r.removed {
		delete(has, name)
	}
	if !xdstype.Of(r.typeURL).OneByOne {
		for _, res := range r.resources {
			delete(has, res.name)
		}
	}
	for _, res := range r.resources {
		if has[res.name] == res.content {
			continue
		}
		for other, content := range has {
			if other != res.name && claim(content) == claim(res.content) {
				t.Fatalf("%s refuses %s, whose %s %s (%s) has, in:\n%s", c.id, res.name, claim(content), other, content, r)
			}
		}
		has[res.name] = res.content
	}
}

// compare sees that in the end the client holds what the origin has.
func (c *orderlyClient) compare(t *rapid.T) {
	for _, typeURL := range c.types() {
		if !maps.Equal(c.held[typeURL], c.origin.state[typeURL]) {
			t.Fatalf("%s holds %s %v, want %v", c.id, shortName(typeURL), c.held[typeURL], c.origin.state[typeURL])
		}
	}
}
