package upstream

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// After any interleaving of subscriptions, changes, lost streams and messages
// under way, the cache has what the control plane has; and on the way there it
// never gets that something is gone that was there all the time.

// model is a client, a control plane that does what the protocol document says,
// and the messages between them.
type model struct {
	*testing.T
	typ     string
	form    *form
	subs    *topics
	session session // nil without a stream
	side    *Stream // if not nil, it has the two above, as its feed
	live    bool    // there is a stream
	now     time.Time
	// update takes what the cache gets: apply, if there is one stream only.
	update func(cache.Update)

	// What the cache would have.
	entries map[string]string            // of the names that were started: text, "absent", "failed" or "requested"
	sets    map[string]map[string]string // of those that were started: nil if it is not Present

	// names are what there may be, and the first of them is there always. setNames are
	// the wildcard, and globs.
	names, setNames []string
	// mixed: names are wanted, and sets too.
	mixed bool
	// lazy: the control plane does not send to a glob what it has sent by name.
	lazy bool
	// pause is how long it may take until the control plane answers, a step at a time.
	pause time.Duration

	world    map[string]string
	hidden   map[string]bool // what a wildcard does not give
	up, down []proto.Message // under way
	server   modelServer
}

// modelServer is the control plane's side of one stream.
type modelServer struct {
	asked, explicit, wildcard bool
	names                     map[string]bool
	globs                     map[string]bool
	known                     map[string]string // what was sent, delta
	nonce                     int
	sentWorld                 map[string]string // SotW: what was sent last
}

func TestCacheHasWhatTheControlPlaneHas(t *testing.T) {
	for _, typ := range []string{"cds", "eds"} {
		for _, form := range []*form{deltaForm, sotwForm} {
			t.Run(fmt.Sprint(typ, "/", form.name), func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) {
					m := newModel(t, typ, form, modelNames)
					if rapid.Bool().Draw(rt, "wildcard") {
						m = newModel(t, typ, form, modelNames, cache.Wildcard)
					}
					m.run(rt)
				})
			})
		}
	}
}

// modelMembers are names in directories, and modelGlobs those of the directories.
var (
	modelMembers = []string{
		"xdstp://a/t/d/always", "xdstp://a/t/d/a", "xdstp://a/t/d/b",
		"xdstp://a/t/e/a", "xdstp://a/t/e/b", "xdstp://a/t/d/a?k=v",
	}
	modelGlobs = []string{"xdstp://a/t/d/*", "xdstp://a/t/e/*", "xdstp://a/t/d/*?k=v"}
)

// The same of globs and names, which share a stream in delta.
func TestCacheHasTheGlobsAndNamesThatTheControlPlaneHas(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t, "cds", deltaForm, modelMembers, modelGlobs...)
		m.mixed = true
		m.pause = time.Millisecond // in settleTime it has answered
		m.lazy = rapid.Bool().Draw(rt, "lazy")
		m.run(rt)
	})
}

// The same of globs: each by itself in delta, and from the wildcard otherwise.
func TestCacheHasTheGlobsThatTheControlPlaneHas(t *testing.T) {
	names, setNames := modelMembers, append(slices.Clone(modelGlobs), cache.Wildcard)
	for name, form := range map[string]*form{"delta": deltaForm, "sotw": sotwForm, "from the wildcard": deltaForm} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				m := newModel(t, "cds", form, names, setNames...)
				m.subs.sets.noGlobs = name == "from the wildcard"
				m.pause = time.Millisecond // in settleTime it has answered
				m.lazy = rapid.Bool().Draw(rt, "lazy")
				m.run(rt)
			})
		})
	}
}

// newModel makes one of sets, or if there are none of names.
func newModel(t *testing.T, typ string, form *form, names []string, sets ...string) *model {
	m := &model{
		T: t, typ: typ, form: form, now: t0,
		subs:    newTopics(cache.Scope{}, typeURLs[typ], len(sets) > 0),
		entries: map[string]string{}, sets: map[string]map[string]string{},
		names: names, setNames: sets, pause: time.Second,
		world: map[string]string{names[0]: "0"},
	}
	m.update = m.apply
	return m
}

// of returns what of the world is in a set.
func (m *model) of(set string) map[string]string {
	if set == cache.Wildcard {
		return m.world
	}
	members := map[string]string{}
	for n, text := range m.world {
		if glob, _ := urn.GlobOf(n); glob == set {
			members[n] = text
		}
	}
	return members
}

func (m *model) run(t *rapid.T) {
	name := rapid.SampledFrom(m.names)
	steps := map[string]func(*rapid.T){
		"change": func(t *rapid.T) {
			n := name.Draw(t, "name")
			if n != m.names[0] && rapid.Bool().Draw(t, "gone") {
				delete(m.world, n)
			} else {
				m.world[n] = fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "text"))
			}
			if m.live && m.server.asked {
				m.push(nil)
			}
		},
		"lost":    func(*rapid.T) { m.lost() },
		"send":    func(*rapid.T) { m.send() },
		"serve":   func(*rapid.T) { m.serve() },
		"deliver": func(*rapid.T) { m.deliver() },
		"wait":    func(*rapid.T) { m.now = m.now.Add(m.pause) },
		"":        m.check,
	}
	if len(m.setNames) > 0 {
		m.stepsOfSets(steps)
	}
	if len(m.setNames) == 0 || m.mixed {
		m.stepsOfNames(steps)
	}
	t.Repeat(steps)

	// Until nothing is under way, and nobody waits.
	for range 3 {
		m.exchange()
		m.now = m.now.Add(time.Minute)
	}
	for n, got := range m.entries {
		want, ok := m.world[n]
		if !ok {
			want = "absent"
		}
		if !ok && m.form == sotwForm && m.typ == "eds" && m.sets[cache.Wildcard] == nil {
			continue // SotW has no word for that
		}
		if got == "failed" && m.form == sotwForm && !m.subs.core().answeredOnStream() {
			continue // nothing is new on this stream, so that it was silent
		}
		if got != want {
			t.Fatalf("%s is %s, want %s", n, got, want)
		}
	}
	for n, got := range m.sets {
		want := m.of(n)
		if got == nil && len(want) == 0 && m.lazy {
			continue // it never said so
		}
		if got == nil || !maps.Equal(got, want) {
			t.Fatalf("the set %s is %v, want %v", n, got, want)
		}
	}
}

func (m *model) stepsOfNames(steps map[string]func(*rapid.T)) {
	name := rapid.SampledFrom(m.names)
	steps["start"] = func(t *rapid.T) {
		n := name.Draw(t, "name")
		if _, ok := m.entries[n]; !ok {
			m.entries[n] = "requested"
			m.start(n)
		}
	}
	steps["stop"] = func(t *rapid.T) {
		n := name.Draw(t, "name")
		if _, ok := m.entries[n]; ok {
			delete(m.entries, n)
			m.subs.stop(n)
			glob, _ := urn.GlobOf(n)
			if _, ok := m.sets[glob]; m.mixed && !ok {
				// What was sent because of the name could be taken for the answer to a
				// glob that is asked for before it comes.
				m.exchange()
			}
		}
	}
}

func (m *model) stepsOfSets(steps map[string]func(*rapid.T)) {
	set := rapid.SampledFrom(m.setNames)
	steps["start set"] = func(t *rapid.T) {
		n := set.Draw(t, "set")
		if _, ok := m.sets[n]; !ok {
			m.sets[n] = nil
			m.start(n)
		}
	}
	steps["stop set"] = func(t *rapid.T) {
		n := set.Draw(t, "set")
		if _, ok := m.sets[n]; ok {
			delete(m.sets, n)
			m.subs.stop(n)
			if n == cache.Wildcard && len(m.setNames) > 1 {
				// What was sent because of it could be taken for the answer to a glob
				// that is asked for before it comes.
				m.exchange()
			}
		}
	}
}

// exchange lets everything arrive that is under way.
func (m *model) exchange() {
	for range 50 {
		m.send()
		m.serve()
		m.deliver()
	}
}

// check holds what must be so at any moment.
func (m *model) check(t *rapid.T) {
	always := m.names[0]
	if m.entries[always] == "absent" {
		t.Fatal("what is always there became absent")
	}
	for n, got := range m.sets {
		_, there := got[always]
		if _, is := m.of(n)[always]; got != nil && is && !there {
			t.Fatalf("what is always there is missing from the set %s", n)
		}
	}
}

func (m *model) start(name string) {
	withKind(m.subs, cache.Scope{}, typeURLs[m.typ], name)
	u := m.subs.newUpdate()
	m.subs.start(name, nil, &u)
	m.apply(u)
}

func (m *model) apply(u cache.Update) {
	for _, c := range u.Changes {
		if _, ok := m.entries[c.Name]; !ok {
			continue
		}
		switch {
		case c.Resource != nil:
			m.entries[c.Name] = text(c.Resource)
		case c.Err == nil || c.Gone:
			m.entries[c.Name] = "absent"
		case m.entries[c.Name] == "requested":
			m.entries[c.Name] = "failed"
		}
	}
	for _, set := range u.Sets {
		got, started := m.sets[set.Name]
		if !started || set.Err != nil {
			continue
		}
		if got == nil || set.Full {
			got = map[string]string{}
			m.sets[set.Name] = got
		}
		for _, c := range set.Changes {
			if c.Resource != nil {
				got[c.Name] = text(c.Resource)
			} else if c.Err == nil {
				delete(got, c.Name)
			}
		}
	}
}

func (m *model) lost() {
	m.live, m.session, m.up, m.down = false, nil, nil, nil
	if m.side != nil {
		loseSide(m.side)
	} else {
		m.subs.lost()
	}
}

// attend takes subs and session from the side's feed, and says whether there are any.
func (m *model) attend() bool {
	if m.side == nil {
		return m.session != nil
	}
	f := m.side.feeds[typeURLs[m.typ]]
	if f == nil {
		return false
	}
	m.subs, m.session = f.topics, f.session
	return m.session != nil
}

// gives says whether the control plane gives what is subscribed to a name.
func (m *model) gives(name string) bool {
	return m.covered(name) && !m.hidden[name] || m.server.names[name]
}

// send is the client's sender: it opens a stream if there is none.
func (m *model) send() {
	attended := m.attend()
	if f := m.feed(); f != nil && f.stale || attended && m.subs.needStream(m.session.begun()) {
		m.lost()
	}
	if !m.live {
		m.live = true
		m.server = modelServer{names: map[string]bool{}, globs: map[string]bool{}, known: map[string]string{}}
		if m.side != nil {
			openSide(m.side)
		} else {
			m.session = m.form.session(m.subs)
		}
	}
	if !m.attend() {
		return
	}
	m.update(m.subs.expire(m.now))
	m.update(m.session.conclude(m.now, defaultResponseTimeout, silenceAfter(m.subs.core().answeredOnStream())))
	m.up = append(m.up, m.session.requests(m.now, 1<<20)...)
}

func (m *model) feed() *feed {
	if m.side == nil {
		return nil
	}
	return m.side.feeds[typeURLs[m.typ]]
}

// deliver gives the client the next response.
func (m *model) deliver() {
	if len(m.down) == 0 {
		return
	}
	b, err := proto.Marshal(m.down[0])
	if err != nil {
		m.Fatal(err)
	}
	m.down = m.down[1:]
	r, err := m.form.parse(b)
	if err != nil {
		m.Fatal(err)
	}
	if !m.attend() || !m.session.begun() {
		return
	}
	u, nack := m.session.response(m.now, r)
	if nack != "" {
		m.Fatalf("NACK: %s", nack)
	}
	m.update(u)
}

// serve gives the server the next request.
func (m *model) serve() {
	if len(m.up) == 0 {
		return
	}
	req := m.up[0]
	m.up = m.up[1:]
	s := &m.server
	switch req := req.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		first := !s.asked
		s.asked = true
		s.explicit = s.explicit || len(req.GetResourceNamesSubscribe()) > 0
		if first {
			s.wildcard = !s.explicit
			maps.Copy(s.known, req.GetInitialResourceVersions())
		}
		again := map[string]bool{} // to be answered in any case
		if first && s.wildcard {
			again[cache.Wildcard] = true
		}
		for _, n := range req.GetResourceNamesSubscribe() {
			switch {
			case n == cache.Wildcard:
				s.wildcard = true
			case isGlob(n):
				s.globs[n] = true
			default:
				s.names[n] = true
			}
			// What was listed need not be sent.
			again[n] = !first || s.known[n] == ""
		}
		if slices.Contains(req.GetResourceNamesUnsubscribe(), cache.Wildcard) && s.explicit {
			s.wildcard = false
		}
		for _, n := range req.GetResourceNamesUnsubscribe() {
			delete(s.globs, n)
		}
		for _, n := range req.GetResourceNamesUnsubscribe() {
			if n != cache.Wildcard && !isGlob(n) {
				delete(s.names, n)
				again[n] = m.covered(n) && !m.lazy
			}
		}
		m.push(again)
	case *discoveryv3.DiscoveryRequest:
		if s.nonce > 0 && req.GetResponseNonce() != fmt.Sprint(s.nonce) {
			return // stale
		}
		first := !s.asked
		s.asked = true
		s.explicit = s.explicit || len(req.GetResourceNames()) > 0
		before := s.names
		s.names = map[string]bool{}
		wildcard := !s.explicit || slices.Contains(req.GetResourceNames(), cache.Wildcard)
		more := wildcard && !s.wildcard
		s.wildcard = wildcard
		for _, n := range req.GetResourceNames() {
			if n != cache.Wildcard {
				s.names[n] = true
				more = more || !before[n]
			}
		}
		// A version that is the present one need not be answered.
		if first && req.GetVersionInfo() == m.worldVersion() {
			s.sentWorld = maps.Clone(m.world)
		} else if more || first {
			m.pushSotW()
		}
	}
}

// covered says whether a set that is subscribed to has a name.
func (m *model) covered(name string) bool {
	glob, _ := urn.GlobOf(name)
	return m.server.wildcard || m.server.globs[glob]
}

func (m *model) worldVersion() string { return fmt.Sprint(m.world) }

// push sends what is to be sent: what has changed, and what is asked for again.
func (m *model) push(again map[string]bool) {
	s := &m.server
	if m.form == sotwForm {
		if (s.wildcard || len(s.names) > 0) && !maps.Equal(s.sentWorld, m.world) {
			m.pushSotW()
		}
		return
	}
	s.nonce++
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs[m.typ], Nonce: fmt.Sprint(s.nonce)}
	for _, n := range m.names {
		if !m.gives(n) {
			if again[n] {
				resp.RemovedResources = append(resp.RemovedResources, n)
			}
			delete(s.known, n)
			continue
		}
		text, ok := m.world[n]
		glob, _ := urn.GlobOf(n)
		all := again[cache.Wildcard] && s.known[n] == "" || again[glob] && (s.known[n] == "" || !m.lazy)
		switch {
		case ok && (again[n] || all || s.known[n] != "v"+text):
			s.known[n] = "v" + text
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{
				Name: n, Version: "v" + text,
				Resource: &anypb.Any{TypeUrl: typeURLs[m.typ], Value: value(m.T, m.typ, n, text)},
			})
		case !ok && (again[n] || s.known[n] != ""):
			delete(s.known, n)
			resp.RemovedResources = append(resp.RemovedResources, n)
		}
	}
	for glob := range s.globs {
		if again[glob] && len(m.of(glob)) == 0 {
			resp.RemovedResources = append(resp.RemovedResources, glob)
		}
	}
	if again[cache.Wildcard] || len(resp.GetResources())+len(resp.GetRemovedResources()) > 0 {
		m.down = append(m.down, resp)
	}
}

func (m *model) pushSotW() {
	s := &m.server
	s.nonce++
	s.sentWorld = maps.Clone(m.world)
	resp := &discoveryv3.DiscoveryResponse{
		TypeUrl: typeURLs[m.typ], Nonce: fmt.Sprint(s.nonce), VersionInfo: m.worldVersion(),
	}
	for _, n := range m.names {
		if text, ok := m.world[n]; ok && m.gives(n) {
			resp.Resources = append(resp.Resources, &anypb.Any{TypeUrl: typeURLs[m.typ], Value: value(m.T, m.typ, n, text)})
		}
	}
	m.down = append(m.down, resp)
}
