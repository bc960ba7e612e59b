package downstream

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// TestClientsConverge holds, for any interleaving of what an origin does and of
// what clients of both forms do:
//
//   - when all has been read, a client has exactly what the origin has of what it
//     subscribed to;
//   - it is not sent what it has, unless it requested it again, or the form demands a full
//     state;
//   - it is not sent the removal of something that it neither has nor requested;
//   - a version stands for one content of what it asked for: one of the origin's for the
//     origin's state.
func TestClientsConverge(t *testing.T) {
	shown := 0
	defer func() { requireShown(t, shown) }()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int{DefaultMaxResponseBytes, 500, 300}).Draw(t, "limit")
		o := newModelOrigin(rapid.SampledFrom([]int{1, 3, 1000}).Draw(t, "idle topics"))
		defer o.cache.Close()
		defer func() { shown += o.shown }()
		server, _ := newTestServer(o.cache, limit)
		var clients []*modelClient
		for i, form := range []string{deltaForm.name, sotwForm.name, deltaForm.name, sotwForm.name} {
			c := &modelClient{server: server, origin: o, form: form, id: form + strconv.Itoa(i)}
			c.connect()
			clients = append(clients, c)
		}
		client := rapid.SampledFrom(clients)
		t.Repeat(map[string]func(*rapid.T){
			"origin changes": func(t *rapid.T) { o.change(t) },
			"origin answers": func(t *rapid.T) { o.answer(t) },
			"origin goes on": func(t *rapid.T) { o.goOn(t) },
			"request":        func(t *rapid.T) { client.Draw(t, "client").request(t) },
			"request again":  func(t *rapid.T) { client.Draw(t, "client").request(t) },
			"send":           func(t *rapid.T) { client.Draw(t, "client").fetch(t) },
			"receive":        func(t *rapid.T) { client.Draw(t, "client").receive(t) },
			"reconnect":      func(t *rapid.T) { client.Draw(t, "client").reconnect(t) },
		})
		for busy := true; busy; {
			busy = o.goOn(t)
			busy = o.answerAll(t) || busy
			for _, c := range clients {
				for c.fetch(t) || c.receive(t) {
					busy = true
				}
			}
		}
		for _, c := range clients {
			c.compare(t)
		}
	})
}

var (
	modelTypes = []string{"cds", "eds", "lds", "rds"}
	modelNames = []string{"a", "b", "c", "d", "e", "f"}
)

// inWildcard says which names a wildcard gives.
func inWildcard(name string) bool { return name < "d" }

// modelOrigin has the true state, and sends the cache what the cache has requested.
type modelOrigin struct {
	cache    *cache.Cache
	facts    map[string]map[string]*fact // by type URL and name
	asked    []cache.Key                 // and not answered yet
	answered map[cache.Key]bool
	counter  int
	// rest is the half of a change that was not sent yet: names and sets may come
	// over different streams.
	rest []cache.Update
	// versions are its versions, and shown counts how often a client saw one of them.
	versions *originVersions
	shown    int
}

// fact is what is so of one name.
type fact struct {
	exists  bool
	content string
	version string
	changes int // of exists and content
}

func newModelOrigin(idleTopics int) *modelOrigin {
	o := &modelOrigin{facts: map[string]map[string]*fact{}, answered: map[cache.Key]bool{}, versions: newOriginVersions()}
	for _, short := range modelTypes {
		facts := map[string]*fact{}
		for _, name := range modelNames {
			facts[name] = &fact{}
		}
		o.facts[typesByShortName[short]] = facts
	}
	o.cache = newTestCache(o, idleTopics)
	return o
}

// Start implements cache.Source.
func (o *modelOrigin) Start(k cache.Key) { o.asked = append(o.asked, k) }

// Refresh implements cache.Source.
func (o *modelOrigin) Refresh(cache.Key) {}

// Stop implements cache.Source.
func (o *modelOrigin) Stop(k cache.Key) {
	delete(o.answered, k)
	o.asked = slices.DeleteFunc(o.asked, func(a cache.Key) bool { return a == k })
}

// goOn sends the rest of the last change.
func (o *modelOrigin) goOn(t *rapid.T) bool {
	rest := o.rest
	o.rest = nil
	for _, u := range rest {
		o.apply(t, u)
	}
	return len(rest) > 0
}

// change changes a few things of one type, and sends them in one update, or in one
// for names and one for sets.
func (o *modelOrigin) change(t *rapid.T) {
	o.goOn(t)
	typeURL := drawType(t)
	scope := oldStyleScope("")
	u := cache.Update{Scope: scope, TypeURL: typeURL}
	set := cache.SetUpdate{Name: cache.Wildcard}
	for _, name := range drawNames(t, "changed", 3) {
		f := o.facts[typeURL][name]
		o.counter++
		f.version = "v" + strconv.Itoa(o.counter)
		content := rapid.SampledFrom([]string{"", "one", "two", "large"}).Draw(t, "content")
		if content == "large" {
			content = strings.Repeat("x", 200)
		}
		if exists := content != ""; exists != f.exists || content != f.content {
			f.exists, f.content = exists, content
			f.changes++
		}
		if o.answered[cache.Key{Scope: scope, TypeURL: typeURL, Name: name}] {
			u.Changes = append(u.Changes, o.current(typeURL, name))
		}
		if inWildcard(name) {
			set.Changes = append(set.Changes, o.current(typeURL, name))
		}
	}
	if o.answered[cache.Key{Scope: scope, TypeURL: typeURL, Name: cache.Wildcard}] {
		if rapid.Bool().Draw(t, "full") {
			set = o.everything(typeURL)
		}
		u.Sets = append(u.Sets, set)
	}
	if len(u.Changes) == 0 || len(u.Sets) == 0 {
		o.apply(t, u)
		return
	}
	names, sets := u, u
	names.Sets, sets.Changes = nil, nil
	switch rapid.IntRange(0, 4).Draw(t, "apart") {
	case 3:
		o.apply(t, names)
		o.rest = append(o.rest, sets)
	case 4:
		o.apply(t, sets)
		o.rest = append(o.rest, names)
	default:
		o.apply(t, u)
	}
}

// answer sends something that the cache has requested, or that it is unavailable.
func (o *modelOrigin) answer(t *rapid.T) {
	if len(o.asked) == 0 {
		t.Skip("nothing was asked")
	}
	i := rapid.IntRange(0, len(o.asked)-1).Draw(t, "question")
	if k := o.asked[i]; rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
		err := &cache.Error{Code: codes.Unavailable, Message: "not now"}
		u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
		if k.Name == cache.Wildcard {
			u.Sets = []cache.SetUpdate{{Name: k.Name, Err: err}}
		} else {
			u.Changes = []cache.Change{{Name: k.Name, Err: err}}
		}
		o.apply(t, u)
		return
	}
	o.answerOne(t, i)
}

func (o *modelOrigin) answerOne(t *rapid.T, i int) {
	k := o.asked[i]
	o.asked = slices.Delete(o.asked, i, i+1)
	o.answered[k] = true
	u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	if k.Name == cache.Wildcard {
		u.Sets = []cache.SetUpdate{o.everything(k.TypeURL)}
	} else {
		u.Changes = []cache.Change{o.current(k.TypeURL, k.Name)}
	}
	o.apply(t, u)
}

func (o *modelOrigin) answerAll(t *rapid.T) (any bool) {
	for len(o.asked) > 0 {
		o.answerOne(t, 0)
		any = true
	}
	return any
}

func (o *modelOrigin) apply(t *rapid.T, u cache.Update) {
	o.stamp(t, &u)
	show := func(changes []cache.Change) (s string) {
		for _, c := range changes {
			if c.Resource == nil {
				s += fmt.Sprintf(" -%s", c.Name)
			} else {
				_, content := decodeContent(c.Resource.Value())
				s += fmt.Sprintf(" %s@%s=%s", c.Name, c.Resource.Version(), abbreviate(content))
			}
		}
		return s
	}
	t.Logf("origin says of %s names:%s", shortName(u.TypeURL), show(u.Changes))
	for _, set := range u.Sets {
		t.Logf("origin says of %s wildcard (full: %v, error: %v):%s", shortName(u.TypeURL), set.Extent.Full(), set.Err, show(set.Changes))
	}
	o.cache.Apply(u)
}

func (o *modelOrigin) current(typeURL, name string) cache.Change {
	f := o.facts[typeURL][name]
	if !f.exists {
		return cache.Change{Name: name}
	}
	return cache.Change{Name: name, Resource: newTestResource(typeURL, name, f.version, f.content)}
}

func (o *modelOrigin) everything(typeURL string) cache.SetUpdate {
	o.counter++
	set := cache.SetUpdate{Name: cache.Wildcard, Extent: cache.Whole, Origin: cache.NewOriginVersion(nil, "all"+strconv.Itoa(o.counter))}
	for _, name := range modelNames {
		if inWildcard(name) && o.facts[typeURL][name].exists {
			set.Changes = append(set.Changes, o.current(typeURL, name))
		}
	}
	return set
}

// modelClient is a client as it sees itself.
type modelClient struct {
	server *Server
	origin *modelOrigin
	form   string
	id     string

	conn     *testClient
	inFlight []*sentToModel // sent by the relay, not yet received
	nonces   int            // of the newest response that the relay has sent
	types    map[string]*modelType
}

// sentToModel is a response on its way.
type sentToModel struct {
	*received
	full    bool           // what is missing in it is gone
	follows bool           // follows one with something left in, that may have come back
	twice   bool           // made for names and a wildcard, and both are to be answered
	at      map[string]int // changes of the resources, when it was made
	// changes of all that a wildcard gives: it is sent again if one of them came
	// and went.
	changes int
	seq     int
}

// modelType is what a client wants and has of one type.
type modelType struct {
	begun    bool // on this stream
	nameless bool // it has named nothing on this stream
	named    map[string]bool
	wild     bool
	// wildSince is the nonce after which the wildcard began. What was on its way
	// from before, of an earlier one, is not of this: a client that mixes them up
	// keeps what has vanished in between, and the protocol has no remedy.
	wildSince int
	held      map[string]heldByModel
	gone      map[string]bool // of what it was sent the removal
	failed    map[string]bool // of what it was sent an error
	refused   map[string]bool // what it has rejected, and not received since
	asked     map[string]int  // what it may be sent unchanged, by the newest nonce when it asked
	resumed   map[string]bool // what it holds from an earlier stream
	byState   map[string]bool // what it holds by a full state, SotW
	nonce     string          // of what it received last
	version   string          // SotW
	pruned    bool            // it has dropped some of what it was sent with that version
	unnoticed bool            // the relay has ignored its newest request
	// left are names that it has dropped while having a wildcard: in SotW nobody
	// says whether that includes them, before the next full state.
	left    map[string]bool
	changes int // of the newest full state, see sentToModel
}

type heldByModel struct {
	content string
	version string
	changes int
}

// GoString keeps rapid's reports short.
func (c *modelClient) GoString() string { return c.id }

func (c *modelClient) connect() {
	c.conn = newTestClient(c.server, c.form, &corev3.Node{Id: c.id})
	c.inFlight, c.nonces = nil, 0
	if c.types == nil {
		c.types = map[string]*modelType{}
	}
	for _, short := range modelTypes {
		typeURL := typesByShortName[short]
		m := c.types[typeURL]
		if m == nil {
			m = &modelType{named: map[string]bool{}, held: map[string]heldByModel{}}
			c.types[typeURL] = m
		}
		m.begun, m.nonce, m.wildSince = false, "", 0
		m.gone, m.failed, m.asked = map[string]bool{}, map[string]bool{}, map[string]int{}
		m.resumed, m.left, m.refused = map[string]bool{}, map[string]bool{}, map[string]bool{}
		for name := range m.held {
			m.resumed[name] = true
		}
	}
}

// reconnect breaks the stream and asks on a new one for what the client wants.
func (c *modelClient) reconnect(t *rapid.T) {
	c.conn.close()
	c.connect()
	for _, short := range modelTypes {
		typeURL := typesByShortName[short]
		m := c.types[typeURL]
		if !m.wild && len(m.named) == 0 {
			continue
		}
		names := slices.Sorted(maps.Keys(m.named))
		if m.wild && (len(names) > 0 || rapid.Bool().Draw(t, "explicit")) {
			names = append(names, cache.Wildcard)
		}
		if c.form == deltaForm.name {
			req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names, InitialResourceVersions: map[string]string{}}
			for name, h := range m.held {
				req.InitialResourceVersions[name] = h.version
			}
			c.sendDelta(t, req)
		} else {
			c.sendSotW(t, typeURL, names, false)
		}
	}
}

// request changes what the client wants.
func (c *modelClient) request(t *rapid.T) {
	typeURL := drawType(t)
	names := drawNames(t, "names", 3)
	if rapid.IntRange(0, 2).Draw(t, "wildcard") == 0 {
		names = append(names, cache.Wildcard)
	}
	if c.form == sotwForm.name {
		c.sendSotW(t, typeURL, names, false)
		return
	}
	drop := drawNames(t, "unsubscribed", 3)
	if rapid.IntRange(0, 4).Draw(t, "no wildcard") == 0 {
		drop = append(drop, cache.Wildcard)
	}
	c.sendDelta(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names, ResourceNamesUnsubscribe: drop})
}

func (c *modelClient) sendDelta(t *rapid.T, req *discoveryv3.DeltaDiscoveryRequest) {
	t.Logf("%s requests %s subscribe=%v unsubscribe=%v initial=%v", c.id, shortName(req.GetTypeUrl()),
		req.GetResourceNamesSubscribe(), req.GetResourceNamesUnsubscribe(), req.GetInitialResourceVersions())
	m := c.types[req.GetTypeUrl()]
	for _, name := range req.GetResourceNamesUnsubscribe() {
		switch {
		case name == cache.Wildcard:
			m.wild = false
			for held := range m.held {
				if !m.named[held] {
					delete(m.held, held)
				}
			}
		case m.named[name]:
			delete(m.named, name)
			delete(m.gone, name)
			delete(m.failed, name)
			if m.wild {
				m.ask(c.nonces, name) // what the wildcard has of it
			} else {
				delete(m.held, name)
			}
		}
	}
	for _, name := range req.GetResourceNamesSubscribe() {
		if name == cache.Wildcard {
			if m.begun {
				m.ask(c.nonces, modelNames...)
			}
			if !m.wild {
				m.wild, m.wildSince = true, c.nonces
			}
			continue
		}
		if m.begun {
			m.ask(c.nonces, name)
		}
		m.named[name] = true
	}
	if !m.begun && len(req.GetResourceNamesSubscribe())+len(req.GetResourceNamesUnsubscribe()) == 0 {
		m.wild = true
	}
	m.begun = true
	if err := c.conn.delta(req); err != nil {
		t.Fatal(err)
	}
}

// sendSotW sends what the client wants, or repeats it with the newest nonce.
func (c *modelClient) sendSotW(t *rapid.T, typeURL string, names []string, rejects bool) {
	m := c.types[typeURL]
	req := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names, ResponseNonce: m.nonce, VersionInfo: m.version}
	if m.pruned && !m.begun {
		req.VersionInfo = ""
	}
	t.Logf("%s requests %s names=%v nonce=%s version=%s", c.id, shortName(typeURL), names, req.ResponseNonce, req.VersionInfo)
	if rejects {
		req.ErrorDetail = &statuspb.Status{Message: "no"}
	}
	m.nameless = len(names) == 0 && (!m.begun || m.nameless)
	m.begun = true
	before := map[string]bool{}
	var wild bool
	if s := c.conn.st.session(typeURL); s != nil {
		before, wild = s.Inspect().Names, s.Inspect().Wildcard
	}
	m.named, m.wild = map[string]bool{}, m.nameless
	for _, name := range names {
		if name == cache.Wildcard {
			m.wild = true
			continue
		}
		m.named[name] = true
		if !before[name] {
			m.ask(c.nonces, name)
		}
	}
	if m.wild && !wild {
		m.ask(c.nonces, modelNames...)
	}
	if err := c.conn.sotw(req); err != nil {
		t.Fatal(err)
	}
	// What the client no longer wants it drops, but not before the relay knows:
	// a stale request is ignored, and the next may want it again.
	is := c.conn.st.session(typeURL).Inspect()
	m.unnoticed = !maps.Equal(is.Names, m.named) || is.Wildcard != m.wild
	if m.unnoticed {
		return
	}
	for name := range m.held {
		if !m.named[name] && m.wild {
			m.left[name] = true
		}
		if !m.named[name] && !m.wild {
			delete(m.held, name)
			m.pruned = true
		}
	}
	for name := range m.gone {
		if !m.named[name] {
			delete(m.gone, name)
		}
	}
}

func (m *modelType) ask(nonce int, names ...string) {
	for _, name := range names {
		m.asked[name] = nonce
	}
}

// wants says whether the client takes what a response says of a name.
func (m *modelType) wants(name string, nonce int) bool {
	return m.named[name] || m.wild && nonce > m.wildSince
}

// mayGet reports whether the client requested a name again, and takes that as
// answered if the response was made after the request.
func (m *modelType) mayGet(name string, nonce int) bool {
	at, ok := m.asked[name]
	if ok && nonce > at {
		delete(m.asked, name)
	}
	return ok
}

// fetch sends the client's next response on its way, with those that were composed together with it.
func (c *modelClient) fetch(t *rapid.T) bool {
	leftIn := map[string]bool{}
	for _, s := range c.conn.st.sessions {
		typeURL := s.TypeURL()
		leftIn[typeURL] = s.Inspect().LeftIn
	}
	if !c.fetchOne(t, leftIn) {
		return false
	}
	for c.conn.follows != nil {
		c.fetchOne(t, leftIn)
	}
	return true
}

func (c *modelClient) fetchOne(t *rapid.T, leftIn map[string]bool) bool {
	r := c.conn.read(t)
	if r == nil {
		return false
	}
	c.nonces++
	s := &sentToModel{received: r, seq: c.nonces, at: map[string]int{}}
	if got := strconv.Itoa(c.nonces); r.nonce != got {
		t.Fatalf("nonce %s, want %s", r.nonce, got)
	}
	for _, res := range r.resources {
		s.at[res.name] = c.origin.facts[r.typeURL][res.name].changes
		if r.typeURL == clusterType { // whose endpoints follow, changed or not
			c.types[endpointType].ask(c.nonces, res.name)
		}
	}
	if is := c.conn.st.session(r.typeURL).Inspect(); c.conn.st.form == sotwForm.name {
		s.full = is.Full
		if is.Wildcard {
			for name, f := range c.origin.facts[r.typeURL] {
				if inWildcard(name) {
					s.changes += f.changes
				}
			}
		}
		s.follows = leftIn[r.typeURL]
		leftIn[r.typeURL] = true // of the next one that was composed together with it
		s.twice = is.Wildcard && len(is.Names) > 0
	}
	c.inFlight = append(c.inFlight, s)
	return true
}

// receive takes the next response that is on its way, and answers it.
func (c *modelClient) receive(t *rapid.T) bool {
	if len(c.inFlight) == 0 {
		return false
	}
	r := c.inFlight[0]
	c.inFlight = c.inFlight[1:]
	m := c.types[r.typeURL]
	m.nonce = r.nonce
	t.Logf("%s receives %s", c.id, r)
	if r.full {
		c.takeFull(t, m, r)
	} else {
		c.takeChanges(t, m, r)
	}
	if c.form == sotwForm.name {
		c.checkVersion(t, m, r)
	}
	rejects := rapid.IntRange(0, 5).Draw(t, "rejects") == 0
	for _, res := range r.resources {
		if rejects {
			m.refused[res.name] = true
		}
	}
	if c.form == sotwForm.name {
		m.version, m.pruned = r.version, r.full && len(m.held) != len(r.resources)
		names := slices.Sorted(maps.Keys(m.named))
		if m.wild && !m.nameless {
			names = append(names, cache.Wildcard)
		}
		c.sendSotW(t, r.typeURL, names, rejects)
		return true
	}
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.typeURL, ResponseNonce: r.nonce}
	if rejects {
		req.ErrorDetail = &statuspb.Status{Message: "no"}
	}
	c.sendDelta(t, req)
	return true
}

func (c *modelClient) takeChanges(t *rapid.T, m *modelType, r *sentToModel) {
	for _, res := range r.resources {
		mayGet := m.mayGet(res.name, r.seq)
		if !m.wants(res.name, r.seq) {
			continue // no longer
		}
		h, held := m.held[res.name]
		if held && h.content == res.content && !mayGet {
			switch {
			case m.wild && h.changes != r.at[res.name]: // changed, and back again
			case m.failed[res.name]: // which ends its error
			case m.refused[res.name]: // the origin has sent it again, with another version
			case m.resumed[res.name] && h.version != res.version:
			default:
				t.Fatalf("%s has %s and did not ask for it again:\n%s", c.id, res.name, r)
			}
		}
		delete(m.resumed, res.name)
		delete(m.byState, res.name)
		delete(m.gone, res.name)
		delete(m.failed, res.name)
		delete(m.refused, res.name)
		m.held[res.name] = heldByModel{res.content, res.version, r.at[res.name]}
	}
	removed := slices.Clone(r.removed)
	for _, e := range r.errors {
		if c.form == sotwForm.name && e.code == codes.NotFound {
			removed = append(removed, e.name)
		} else {
			m.mayGet(e.name, r.seq)
			m.failed[e.name] = true
			delete(m.gone, e.name)
		}
	}
	for _, name := range removed {
		mayGet := m.mayGet(name, r.seq)
		_, held := m.held[name]
		switch {
		case !m.wants(name, r.seq):
			continue
		case held, mayGet, m.named[name] && !m.gone[name]:
		case m.wild:
			// A set remembers what was removed, but not which clients knew of earlier
			// removals and returns.
		default:
			t.Fatalf("%s does not have %s, and was sent its removal:\n%s", c.id, name, r)
		}
		delete(m.held, name)
		delete(m.resumed, name)
		m.gone[name] = true
	}
}

func (c *modelClient) takeFull(t *rapid.T, m *modelType, r *sentToModel) {
	asked := false
	for name := range m.asked {
		asked = m.mayGet(name, r.seq) || asked
	}
	changed := len(r.errors) > 0 || r.changes != m.changes
	m.changes = r.changes
	held := map[string]heldByModel{}
	for _, res := range r.resources {
		if m.named[res.name] || m.wild || m.unnoticed {
			held[res.name] = heldByModel{res.content, res.version, r.at[res.name]}
		}
	}
	for name, h := range held {
		old, ok := m.held[name]
		changed = changed || !ok || old.content != h.content || old.changes != h.changes || m.refused[name] // with another version
	}
	allWanted := len(held) == len(r.resources) && (m.wild || len(m.named) > 0)
	if len(held) == len(m.held) && !changed && !asked && !r.twice && !r.follows && allWanted {
		if len(m.failed) > 0 {
			return // of one of those it is known by now that it does not exist
		}
		t.Fatalf("%s has all of that and did not ask for it again:\n%s", c.id, r)
	}
	m.held, m.byState = held, map[string]bool{}
	for name := range held {
		m.byState[name] = true
	}
	for _, e := range r.errors {
		m.failed[e.name] = true
	}
	clear(m.left)
	clear(m.resumed)
}

// shown returns what an operator sees that the client has of a type. wild: an operator sees a wildcard.
func (c *modelClient) shown(t *rapid.T, typeURL string) (shown map[string]string, wild bool) {
	shown = map[string]string{}
	for h := range c.server.InspectStream(c.conn.st.id).Held(typeURL) {
		r := cmp.Or(h.Resource, h.Rejected)
		wild = wild || h.Subscription == cache.Wildcard
		switch {
		case h.Covered || h.Name == "":
			continue
		case h.Pending:
			t.Errorf("%s: %s %s is pending, though there is nothing to send", c.id, shortName(typeURL), h.Name)
		case r == nil && h.State != session.Requested && h.State != session.DoesNotExist && h.State != session.Failed:
			t.Errorf("%s: %s %s is %s, and not known", c.id, shortName(typeURL), h.Name, h.State)
		}
		if _, twice := shown[h.Name]; twice {
			t.Errorf("%s: %s %s is shown twice", c.id, shortName(typeURL), h.Name)
		}
		if r != nil {
			_, shown[h.Name] = decodeContent(r.Value())
		}
	}
	return shown, wild
}

// compare holds the client's state against the origin's, and what an operator sees against both.
func (c *modelClient) compare(t *rapid.T) {
	for _, short := range modelTypes {
		typeURL := typesByShortName[short]
		m := c.types[typeURL]
		if !m.begun {
			continue
		}
		shown, wild := c.shown(t, typeURL)
		for _, name := range modelNames {
			f := c.origin.facts[typeURL][name]
			want := f.exists && (m.named[name] || m.wild && inWildcard(name))
			h, got := m.held[name]
			switch {
			case got && !want && !m.left[name]:
				t.Fatalf("%s has %s %s, which it should not (it exists: %v)", c.id, short, name, f.exists)
			case want && !got:
				t.Fatalf("%s does not have %s %s", c.id, short, name)
			case want && h.content != f.content:
				t.Fatalf("%s has %s %s = %s, want %s", c.id, short, name, abbreviate(h.content), abbreviate(f.content))
			}
			// With a request that only ends a wildcard, the client may have begun one.
			if is, there := shown[name]; wild == m.wild && (there != want || there && is != f.content) {
				t.Fatalf("%s has %s %s: %v, and an operator sees %v %s", c.id, short, name, want, there, abbreviate(is))
			}
		}
	}
}

func drawType(t *rapid.T) string {
	return typesByShortName[rapid.SampledFrom(modelTypes).Draw(t, "type")]
}

func drawNames(t *rapid.T, label string, most int) []string {
	return rapid.SliceOfN(rapid.SampledFrom(modelNames), 0, most).Draw(t, label)
}
