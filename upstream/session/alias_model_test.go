package session

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
)

// TestAnAliasStandsForTheResourceOfTheLastState moves names at random among resources, as their own
// names and as aliases. At the end each name must stand for the resource of the control plane's
// state, in whatever order and number of responses that came. A change that comes in one response must
// not remove a name that exists before and after it. xDS: "Resource names" of "Incremental xDS".
func TestAnAliasStandsForTheResourceOfTheLastState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newAliasModel(t)
		for range rapid.IntRange(1, 15).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				m.ask(t)
			case 1:
				m.deliver(t, rapid.IntRange(0, 3).Draw(t, "responses"))
			case 2:
				m.change(t, false)
			case 3:
				m.deliver(t, len(m.under))
				m.compare(t)
				m.change(t, true)
			}
		}
		for len(m.under) > 0 {
			m.deliver(t, len(m.under))
		}
		m.compare(t)
	})
}

// aliasModel is a control plane of one delta stream, whose client is a session.
type aliasModel struct {
	subs    *Names
	session Session
	now     time.Time
	cached  map[string]string // what the cache has of each name, "" if it is absent
	kept    map[string]bool   // what must not become absent

	state   map[string]aliasState // of each resource
	known   map[string]aliasState // what was sent
	changes int
	under   []*discoveryv3.DeltaDiscoveryResponse // under way
}

// aliasState is a resource's content and aliases.
type aliasState struct {
	content string
	aliases string
}

var (
	movingNames = []string{"a", "b", "c", "r", "s"}
	resources   = []string{"c", "r", "s", "t"} // of which some are asked for by their names
)

func newAliasModel(t *rapid.T) *aliasModel {
	m := &aliasModel{
		now: t0, cached: map[string]string{},
		state: map[string]aliasState{}, known: map[string]aliasState{},
	}
	m.subs = NewNames(Config{Scope: cache.Scope{}, TypeURL: typeURLs["rds"]})
	m.session = newDelta(&Topics{Names: m.subs})
	m.change(t, false)
	return m
}

// stands returns the resource for which a name stands, empty if there is none.
func (m *aliasModel) stands(name string) string {
	if _, there := m.state[name]; there {
		return name
	}
	for own, st := range m.state {
		if slices.Contains(strings.Fields(st.aliases), name) {
			return own
		}
	}
	return ""
}

func (m *aliasModel) ask(t *rapid.T) {
	name := rapid.SampledFrom(movingNames).Draw(t, "name")
	u := m.subs.NewUpdate()
	if _, asked := m.cached[name]; asked {
		t.Logf("stop %s", name)
		delete(m.cached, name)
		m.subs.stop(name)
	} else {
		t.Logf("start %s", name)
		m.cached[name] = ""
		m.subs.start(name, nil, &u)
	}
	m.update(t, u)
	m.send(t)
}

// send answers the client's requests.
func (m *aliasModel) send(t *rapid.T) {
	for _, req := range m.session.Requests(m.now, 1<<20) {
		for _, name := range req.(*discoveryv3.DeltaDiscoveryRequest).GetResourceNamesSubscribe() {
			own := m.stands(name)
			if own == "" {
				m.respond(t, &discoveryv3.DeltaDiscoveryResponse{RemovedResources: []string{name}})
				continue
			}
			m.known[own] = m.state[own]
			m.respond(t, &discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{m.resource(own)}})
		}
	}
}

func (m *aliasModel) resource(own string) *discoveryv3.Resource {
	st := m.state[own]
	return &discoveryv3.Resource{
		Name: own, Version: st.content, Aliases: strings.Fields(st.aliases),
		Resource: &anypb.Any{TypeUrl: typeURLs["rds"], Value: []byte("\x0a" + string(rune(len(own))) + own)},
	}
}

func (m *aliasModel) respond(t *rapid.T, r *discoveryv3.DeltaDiscoveryResponse) {
	r.TypeUrl, r.Nonce = typeURLs["rds"], "n"
	t.Logf("respond %v removed=%v", r.GetResources(), r.GetRemovedResources())
	m.under = append(m.under, r)
}

// change changes the state at random, and sends the wanted part of it, in one or
// more responses.
func (m *aliasModel) change(t *rapid.T, atOnce bool) {
	before := map[string]bool{}
	for name := range m.cached {
		before[name] = m.stands(name) != ""
	}
	m.changes++
	state := map[string]aliasState{}
	for _, own := range resources {
		switch rapid.IntRange(0, 4).Draw(t, own+" is") {
		case 0: // not there
		case 1:
			state[own] = aliasState{content: fmt.Sprint(own, m.changes)}
		default:
			if st, there := m.state[own]; there {
				state[own] = aliasState{content: st.content}
			} else {
				state[own] = aliasState{content: fmt.Sprint(own, m.changes)}
			}
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		own := rapid.SampledFrom(resources).Draw(t, name+" is of")
		if st, there := state[own]; there && state[name] == (aliasState{}) {
			st.aliases = strings.TrimSpace(st.aliases + " " + name)
			state[own] = st
		}
	}
	m.state = state
	t.Logf("the state: %v", state)
	m.push(t, atOnce)
	if !atOnce {
		return
	}
	m.kept = map[string]bool{}
	for name := range m.cached {
		m.kept[name] = before[name] && m.stands(name) != ""
	}
	m.deliver(t, 1)
	m.kept = nil
	m.compare(t)
}

func (m *aliasModel) push(t *rapid.T, atOnce bool) {
	wanted := map[string]bool{}
	for name := range m.cached {
		wanted[m.stands(name)] = true
	}
	var changed []string
	for _, own := range resources {
		st, there := m.state[own]
		was, known := m.known[own]
		if known && (!there || st != was) || !known && there && wanted[own] {
			changed = append(changed, own)
		}
	}
	r := &discoveryv3.DeltaDiscoveryResponse{}
	if len(changed) > 0 {
		changed = rapid.Permutation(changed).Draw(t, "order")
	}
	for _, own := range changed {
		if _, there := m.state[own]; there {
			m.known[own] = m.state[own]
			r.Resources = append(r.Resources, m.resource(own))
		} else {
			delete(m.known, own)
			r.RemovedResources = append(r.RemovedResources, own)
		}
		if !atOnce && rapid.Bool().Draw(t, "split") {
			m.respond(t, r)
			r = &discoveryv3.DeltaDiscoveryResponse{}
		}
	}
	m.respond(t, r)
}

func (m *aliasModel) deliver(t *rapid.T, n int) {
	for range min(n, len(m.under)) {
		b, err := proto.Marshal(m.under[0])
		if err != nil {
			t.Fatal(err)
		}
		r, err := Delta.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		m.under = m.under[1:]
		u, nack := m.session.Response(m.now, r)
		r.Clear() // nothing may refer to it any more
		if nack != "" {
			t.Fatal(nack)
		}
		m.update(t, u)
	}
	m.send(t)
}

func (m *aliasModel) update(t *rapid.T, u cache.Update) {
	got := map[string]string{}
	for _, c := range u.Changes {
		if got[c.Name] = ""; c.Resource != nil {
			got[c.Name] = c.Resource.Version()
		}
	}
	for name, text := range got {
		if text == "" && m.kept[name] {
			t.Errorf("%s becomes absent, and there is %s before and after", name, m.stands(name))
		}
	}
	t.Logf("got %v", got)
	maps.Copy(m.cached, got)
}

// compare compares what the cache has with the state, of which all has come.
func (m *aliasModel) compare(t *rapid.T) {
	if len(m.under) > 0 {
		return
	}
	for name, got := range m.cached {
		if want := m.state[m.stands(name)].content; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}
