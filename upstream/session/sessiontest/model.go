package sessiontest

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

// Model is a client, a control plane that does what the protocol document says,
// and the messages between them. After any interleaving of subscriptions, changes, lost
// streams and messages under way, the cache has the control plane's state. On the way
// there it never gets the removal of a resource that always existed.
type Model struct {
	*testing.T
	// Client is the client's side of the stream.
	Client Client
	// Type is the short name of the type, and Delta says that the stream is one of delta.
	Type  string
	Delta bool
	Live  bool // there is a stream
	Now   time.Time
	// Update receives the updates of the cache: Apply, if there is one stream only.
	Update func(cache.Update)

	// The state that the cache would have.
	Entries map[string]string            // of the names that were started: text, "absent", "failed" or "requested"
	Sets    map[string]map[string]string // of those that were started: nil if it is not Present

	// Names are all names that may exist. The first of them always exists. SetNames are
	// the wildcard, and globs.
	Names, SetNames []string
	// Mixed: names are wanted, and sets too.
	Mixed bool
	// Lazy: the control plane does not send a resource for a glob that it has sent for its name.
	Lazy bool
	// Pause is how long it may take until the control plane answers, a step at a time.
	Pause time.Duration

	World    map[string]string
	Hidden   map[string]bool // what a wildcard does not give
	up, down []proto.Message // under way
	server   modelServer
}

// Client is the client's side of a stream.
type Client interface {
	// Start subscribes to a name or a set, and Stop unsubscribes from it.
	Start(name string) cache.Update
	Stop(name string)
	// Opened begins a stream, and Lost ends it.
	Opened()
	Lost()
	// NeedsStream reports whether the stream is to be opened again.
	NeedsStream() bool
	// Requests returns the requests to send. update receives changes that are due by time.
	Requests(now time.Time, update func(cache.Update)) []proto.Message
	// Response takes a response.
	Response(now time.Time, b []byte) (u cache.Update, nack string, err error)
	// Answered reports whether there was a response on the stream.
	Answered() bool
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

// NewModel makes a model with sets, or with names if there are no sets. It has no Client yet.
func NewModel(t *testing.T, now time.Time, typ string, delta bool, names []string, sets ...string) *Model {
	m := &Model{
		T: t, Type: typ, Delta: delta, Now: now,
		Entries: map[string]string{}, Sets: map[string]map[string]string{},
		Names: names, SetNames: sets, Pause: time.Second,
		World: map[string]string{names[0]: "0"},
	}
	m.Update = m.Apply
	return m
}

// Asked reports whether the control plane has had a request on the stream.
func (m *Model) Asked() bool { return m.Live && m.server.asked }

func isGlob(name string) bool { return name != cache.Wildcard && cache.Key{Name: name}.IsSet() }

// of returns the part of the world that is in a set.
func (m *Model) of(set string) map[string]string {
	if set == cache.Wildcard {
		return m.World
	}
	members := map[string]string{}
	for n, text := range m.World {
		if glob, _ := urn.GlobOf(n); glob == set {
			members[n] = text
		}
	}
	return members
}

// Run takes random steps, and then checks the state once no message is under way.
func (m *Model) Run(t *rapid.T) {
	name := rapid.SampledFrom(m.Names)
	steps := map[string]func(*rapid.T){
		"change": func(t *rapid.T) {
			n := name.Draw(t, "name")
			if n != m.Names[0] && rapid.Bool().Draw(t, "gone") {
				delete(m.World, n)
			} else {
				m.World[n] = fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "text"))
			}
			if m.Asked() {
				m.Push(nil)
			}
		},
		"lost":    func(*rapid.T) { m.Lose() },
		"send":    func(*rapid.T) { m.Send() },
		"serve":   func(*rapid.T) { m.Serve() },
		"deliver": func(*rapid.T) { m.Deliver() },
		"wait":    func(*rapid.T) { m.Now = m.Now.Add(m.Pause) },
		"":        m.Check,
	}
	if len(m.SetNames) > 0 {
		m.stepsOfSets(steps)
	}
	if len(m.SetNames) == 0 || m.Mixed {
		m.stepsOfNames(steps)
	}
	t.Repeat(steps)

	// Until nothing is under way, and nobody waits.
	for range 3 {
		m.exchange()
		m.Now = m.Now.Add(time.Minute)
	}
	for n, got := range m.Entries {
		want, ok := m.World[n]
		if !ok {
			want = "absent"
		}
		if !ok && !m.Delta && m.Type == "eds" && m.Sets[cache.Wildcard] == nil {
			continue // SotW cannot report that
		}
		if got == "failed" && !m.Delta && !m.Client.Answered() {
			continue // nothing is new on this stream, so the control plane was silent
		}
		if got != want {
			t.Fatalf("%s is %s, want %s", n, got, want)
		}
	}
	for n, got := range m.Sets {
		want := m.of(n)
		if got == nil && len(want) == 0 && m.Lazy {
			continue // the control plane has never reported it
		}
		if got == nil || !maps.Equal(got, want) {
			t.Fatalf("the set %s is %v, want %v", n, got, want)
		}
	}
}

func (m *Model) stepsOfNames(steps map[string]func(*rapid.T)) {
	name := rapid.SampledFrom(m.Names)
	steps["start"] = func(t *rapid.T) {
		n := name.Draw(t, "name")
		if _, ok := m.Entries[n]; !ok {
			m.Entries[n] = "requested"
			m.start(n)
		}
	}
	steps["stop"] = func(t *rapid.T) {
		n := name.Draw(t, "name")
		if _, ok := m.Entries[n]; ok {
			delete(m.Entries, n)
			m.Client.Stop(n)
			glob, _ := urn.GlobOf(n)
			if _, ok := m.Sets[glob]; m.Mixed && !ok {
				// What was sent because of the name could be taken for the answer to a
				// glob that is asked for before it comes.
				m.exchange()
			}
		}
	}
}

func (m *Model) stepsOfSets(steps map[string]func(*rapid.T)) {
	set := rapid.SampledFrom(m.SetNames)
	steps["start set"] = func(t *rapid.T) {
		n := set.Draw(t, "set")
		if _, ok := m.Sets[n]; !ok {
			m.Sets[n] = nil
			m.start(n)
		}
	}
	steps["stop set"] = func(t *rapid.T) {
		n := set.Draw(t, "set")
		if _, ok := m.Sets[n]; ok {
			delete(m.Sets, n)
			m.Client.Stop(n)
			if n == cache.Wildcard && len(m.SetNames) > 1 {
				// What was sent because of it could be taken for the answer to a glob
				// that is asked for before it comes.
				m.exchange()
			}
		}
	}
}

// exchange delivers all messages that are under way.
func (m *Model) exchange() {
	for range 50 {
		m.Send()
		m.Serve()
		m.Deliver()
	}
}

// Check checks the invariants that hold at any moment.
func (m *Model) Check(t *rapid.T) {
	always := m.Names[0]
	if m.Entries[always] == "absent" {
		t.Fatal("what is always there became absent")
	}
	for n, got := range m.Sets {
		_, there := got[always]
		if _, is := m.of(n)[always]; got != nil && is && !there {
			t.Fatalf("what is always there is missing from the set %s", n)
		}
	}
}

func (m *Model) start(name string) {
	m.Apply(m.Client.Start(name))
}

// Apply receives an update of the cache.
func (m *Model) Apply(u cache.Update) {
	for _, c := range u.Changes {
		if _, ok := m.Entries[c.Name]; !ok {
			continue
		}
		switch {
		case c.Resource != nil:
			m.Entries[c.Name] = Text(c.Resource)
		case c.Err == nil || c.Gone:
			m.Entries[c.Name] = "absent"
		case m.Entries[c.Name] == "requested":
			m.Entries[c.Name] = "failed"
		}
	}
	for _, set := range u.Sets {
		got, started := m.Sets[set.Name]
		if !started || set.Err != nil {
			continue
		}
		if got == nil || set.Extent.Full() {
			got = map[string]string{}
			m.Sets[set.Name] = got
		}
		for _, c := range set.Changes {
			if c.Resource != nil {
				got[c.Name] = Text(c.Resource)
			} else if c.Err == nil {
				delete(got, c.Name)
			}
		}
	}
}

// Lose ends the stream, with all that is under way.
func (m *Model) Lose() {
	m.Live, m.up, m.down = false, nil, nil
	m.Client.Lost()
}

// gives reports whether the control plane sends a name for any subscription.
func (m *Model) gives(name string) bool {
	return m.covered(name) && !m.Hidden[name] || m.server.names[name]
}

// Send is the client's sender: it opens a stream if there is none.
func (m *Model) Send() {
	if m.Client.NeedsStream() {
		m.Lose()
	}
	if !m.Live {
		m.Live = true
		m.server = modelServer{names: map[string]bool{}, globs: map[string]bool{}, known: map[string]string{}}
		m.Client.Opened()
	}
	m.up = append(m.up, m.Client.Requests(m.Now, m.Update)...)
}

// Deliver gives the client the next response.
func (m *Model) Deliver() {
	if len(m.down) == 0 {
		return
	}
	b, err := proto.Marshal(m.down[0])
	if err != nil {
		m.Fatal(err)
	}
	m.down = m.down[1:]
	u, nack, err := m.Client.Response(m.Now, b)
	if err != nil {
		m.Fatal(err)
	}
	if nack != "" {
		m.Fatalf("NACK: %s", nack)
	}
	m.Update(u)
}

// Serve gives the server the next request.
func (m *Model) Serve() {
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
				again[n] = m.covered(n) && !m.Lazy
			}
		}
		m.Push(again)
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
			s.sentWorld = maps.Clone(m.World)
		} else if more || first {
			m.pushSotW()
		}
	}
}

// covered reports whether a set that is subscribed to has a name.
func (m *Model) covered(name string) bool {
	glob, _ := urn.GlobOf(name)
	return m.server.wildcard || m.server.globs[glob]
}

func (m *Model) worldVersion() string { return fmt.Sprint(m.World) }

// Push sends the changes, and the resources that were requested again.
func (m *Model) Push(again map[string]bool) {
	s := &m.server
	if !m.Delta {
		if (s.wildcard || len(s.names) > 0) && !maps.Equal(s.sentWorld, m.World) {
			m.pushSotW()
		}
		return
	}
	s.nonce++
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: TypeURLs[m.Type], Nonce: fmt.Sprint(s.nonce)}
	for _, n := range m.Names {
		if !m.gives(n) {
			if again[n] {
				resp.RemovedResources = append(resp.RemovedResources, n)
			}
			delete(s.known, n)
			continue
		}
		text, ok := m.World[n]
		glob, _ := urn.GlobOf(n)
		all := again[cache.Wildcard] && s.known[n] == "" || again[glob] && (s.known[n] == "" || !m.Lazy)
		switch {
		case ok && (again[n] || all || s.known[n] != "v"+text):
			s.known[n] = "v" + text
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{
				Name: n, Version: "v" + text,
				Resource: &anypb.Any{TypeUrl: TypeURLs[m.Type], Value: Value(m.T, m.Type, n, text)},
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

func (m *Model) pushSotW() {
	s := &m.server
	s.nonce++
	s.sentWorld = maps.Clone(m.World)
	resp := &discoveryv3.DiscoveryResponse{
		TypeUrl: TypeURLs[m.Type], Nonce: fmt.Sprint(s.nonce), VersionInfo: m.worldVersion(),
	}
	for _, n := range m.Names {
		if text, ok := m.World[n]; ok && m.gives(n) {
			resp.Resources = append(resp.Resources, &anypb.Any{TypeUrl: TypeURLs[m.Type], Value: Value(m.T, m.Type, n, text)})
		}
	}
	m.down = append(m.down, resp)
}
