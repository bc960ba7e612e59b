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
)

// After any interleaving of subscriptions, changes, lost streams and messages
// under way, the cache has what the control plane has; and on the way there it
// is never told that something is gone that was there all the time.

// model is a client, a control plane that does what the protocol document says,
// and the messages between them.
type model struct {
	*testing.T
	typ     string
	form    *form
	subs    *subscriptions
	session session // nil without a stream
	now     time.Time
	// tell takes what the cache is told: apply, if there is one stream only.
	tell func(...cache.Update)
	// attached, if not nil, is called when session has changed.
	attached func()

	// What the cache would have.
	entries map[string]string // of the names that were started: text, "absent", "failed" or "requested"
	set     map[string]string // nil if the set is not Present
	started bool              // the set was

	world    map[string]string
	hidden   map[string]bool // what a wildcard does not give
	up, down []proto.Message // under way
	server   modelServer
}

// modelServer is the control plane's side of one stream.
type modelServer struct {
	asked, explicit, wildcard bool
	names                     map[string]bool
	known                     map[string]string // what was sent, delta
	nonce                     int
	sentWorld                 map[string]string // SotW: what was sent last
}

var modelNames = []string{"always", "a", "b", "c"}

func TestCacheHasWhatTheControlPlaneHas(t *testing.T) {
	for _, typ := range []string{"cds", "eds"} {
		for _, form := range []*form{deltaForm, sotwForm} {
			t.Run(fmt.Sprint(typ, "/", form.name), func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) {
					m := &model{
						T: t, typ: typ, form: form, now: t0,
						subs:    newSubscriptions(cache.Scope{}, typeURLs[typ]),
						entries: map[string]string{},
						world:   map[string]string{"always": "0"},
					}
					m.tell = m.apply
					m.run(rt)
				})
			})
		}
	}
}

func (m *model) run(t *rapid.T) {
	name := rapid.SampledFrom(modelNames)
	steps := map[string]func(*rapid.T){
		"start": func(t *rapid.T) {
			n := name.Draw(t, "name")
			if _, ok := m.entries[n]; !ok {
				m.entries[n] = "requested"
				m.start(n)
			}
		},
		"stop": func(t *rapid.T) {
			n := name.Draw(t, "name")
			if _, ok := m.entries[n]; ok {
				delete(m.entries, n)
				m.subs.stop(n)
			}
		},
		"start set": func(*rapid.T) {
			if !m.started {
				m.started = true
				m.start(cache.Wildcard)
			}
		},
		"stop set": func(*rapid.T) {
			if m.started {
				m.started, m.set = false, nil
				m.subs.stop(cache.Wildcard)
			}
		},
		"change": func(t *rapid.T) {
			n := name.Draw(t, "name")
			if n != "always" && rapid.Bool().Draw(t, "gone") {
				delete(m.world, n)
			} else {
				m.world[n] = fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "text"))
			}
			if m.session != nil && m.server.asked {
				m.push(nil)
			}
		},
		"lost":    func(*rapid.T) { m.lost() },
		"send":    func(*rapid.T) { m.send() },
		"serve":   func(*rapid.T) { m.serve() },
		"deliver": func(*rapid.T) { m.deliver() },
		"wait":    func(*rapid.T) { m.now = m.now.Add(time.Second) },
		"":        m.check,
	}
	t.Repeat(steps)

	// Until nothing is under way, and nobody waits.
	for range 3 {
		for range 50 {
			m.send()
			m.serve()
			m.deliver()
		}
		m.now = m.now.Add(time.Minute)
	}
	for n, got := range m.entries {
		want, ok := m.world[n]
		if !ok {
			want = "absent"
		}
		if !ok && m.form == sotwForm && m.typ == "eds" && !m.started {
			continue // SotW has no word for that
		}
		if got != want {
			t.Fatalf("%s is %s, want %s", n, got, want)
		}
	}
	if m.started && (m.set == nil || !maps.Equal(m.set, m.world)) {
		t.Fatalf("the set is %v, want %v", m.set, m.world)
	}
}

// check holds what must be so at any moment.
func (m *model) check(t *rapid.T) {
	if m.entries["always"] == "absent" {
		t.Fatal("what is always there was told absent")
	}
	if _, ok := m.set["always"]; m.set != nil && !ok {
		t.Fatal("what is always there is missing from the set")
	}
}

func (m *model) start(name string) {
	u := m.subs.newUpdate()
	m.subs.start(name, nil, &u)
	m.apply(u)
}

func (m *model) apply(updates ...cache.Update) {
	for _, u := range updates {
		m.applyOne(u)
	}
}

func (m *model) applyOne(u cache.Update) {
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
		if !m.started || set.Err != nil {
			continue
		}
		if m.set == nil || set.Full {
			m.set = map[string]string{}
		}
		for _, c := range set.Changes {
			if c.Resource != nil {
				m.set[c.Name] = text(c.Resource)
			} else if c.Err == nil {
				delete(m.set, c.Name)
			}
		}
	}
}

func (m *model) lost() {
	m.session, m.up, m.down = nil, nil, nil
	m.subs.lost()
	m.attach()
}

func (m *model) attach() {
	if m.attached != nil {
		m.attached()
	}
}

// gives says whether the control plane gives what is subscribed to a name.
func (m *model) gives(name string) bool {
	return m.server.wildcard && !m.hidden[name] || m.server.names[name]
}

// send is the client's sender: it opens a stream if there is none.
func (m *model) send() {
	if m.session != nil {
		if need, _ := m.subs.needStream(m.session.begun()); need {
			m.lost()
		}
	}
	if m.session == nil {
		m.server = modelServer{names: map[string]bool{}, known: map[string]string{}}
		m.session = m.form.session(alone(m.subs))
		m.attach()
	}
	m.tell(m.session.conclude(m.now, defaultResponseTimeout)...)
	m.up = append(m.up, m.session.requests(m.now, 1<<20)...)
}

// deliver gives the client the next response.
func (m *model) deliver() {
	if m.session == nil || len(m.down) == 0 {
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
	updates, nack := m.session.response(m.now, r)
	if nack != "" {
		m.Fatalf("NACK: %s", nack)
	}
	m.tell(updates...)
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
			if n == cache.Wildcard {
				s.wildcard = true
			} else {
				s.names[n] = true
			}
			// What was listed need not be sent.
			again[n] = !first || s.known[n] == ""
		}
		if slices.Contains(req.GetResourceNamesUnsubscribe(), cache.Wildcard) && s.explicit {
			s.wildcard = false
		}
		for _, n := range req.GetResourceNamesUnsubscribe() {
			if n != cache.Wildcard {
				again[n] = s.wildcard
				delete(s.names, n)
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
	for _, n := range modelNames {
		if !m.gives(n) {
			if again[n] {
				resp.RemovedResources = append(resp.RemovedResources, n)
			}
			delete(s.known, n)
			continue
		}
		text, ok := m.world[n]
		all := again[cache.Wildcard] && s.known[n] == ""
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
	for _, n := range modelNames {
		if text, ok := m.world[n]; ok && m.gives(n) {
			resp.Resources = append(resp.Resources, &anypb.Any{TypeUrl: typeURLs[m.typ], Value: value(m.T, m.typ, n, text)})
		}
	}
	m.down = append(m.down, resp)
}
