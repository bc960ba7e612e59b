package upstream

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

// The same as in model_test.go, of several sets of dynamic parameters on one stream
// and a control plane that does what TP2 says: after any interleaving each set has
// the variants that match, and on the way there nobody is told that something is
// gone that was there all the time.

// setsModel is a client, a control plane, and the messages between them.
type setsModel struct {
	*testing.T
	typ     string
	form    *form
	sets    *paramSets
	session session // nil without a stream
	now     time.Time

	// What the caches would have, by parameters.
	views map[string]*setsView

	// world has the texts, by name and constraint: K:V, or empty for none. The
	// constraints of a name exclude each other.
	world    map[string]map[string]string
	up, down []proto.Message // under way
	server   setsServer
}

type setsView struct {
	entries map[string]string // as in model
	set     map[string]string
	started bool
	// stale are members that went when there was no stream: in the first request,
	// which lists them, there are only names, and others have them.
	stale map[string]bool
}

// setsServer is the control plane's side of one stream.
type setsServer struct {
	asked, explicit bool
	wanted          map[setsLocator]bool
	known           map[setsVariant]string // what was sent, delta
	last            map[setsVariant]string // SotW
	nonce           int
}

type setsLocator struct{ params, name string }

type setsVariant struct{ name, constraint string }

var (
	setsParams = []string{"", "env=prod", "env=prod&zone=z", "env=test"}
	// setsSteady are there all the time, for some or for all.
	setsSteady = map[string]map[string]string{"always": {"": "0"}, "prod": {"env:prod": "0"}}
	setsNames  = []string{"a", "always", "b", "prod"}
)

func TestSetsHaveTheVariantsThatMatch(t *testing.T) {
	for _, typ := range []string{"cds", "eds"} {
		for _, form := range []*form{deltaForm, sotwForm} {
			t.Run(fmt.Sprint(typ, "/", form.name), func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) {
					m := &setsModel{
						T: t, typ: typ, form: form, now: t0,
						sets:  newParamSets(cache.Scope{}, typeURLs[typ]),
						views: map[string]*setsView{},
						world: maps.Clone(setsSteady),
					}
					for _, params := range setsParams {
						m.views[params] = &setsView{entries: map[string]string{}}
					}
					m.run(rt)
				})
			})
		}
	}
}

// variantOf returns the text of the variant that matches.
func (m *setsModel) variantOf(params, name string) (text string, ok bool) {
	for constraint, text := range m.world[name] {
		if matches(constraint, params) {
			return text, true
		}
	}
	return "", false
}

func matches(constraint, params string) bool {
	key, val, _ := strings.Cut(constraint, ":")
	return constraint == "" || cache.ParseParams(params)[key] == val
}

// versionOf is the version of a variant, and of no other: a control plane is told the
// versions of names, and would take another variant for the one that it has.
func versionOf(constraint, text string) string { return constraint + " " + text }

func (m *setsModel) run(t *rapid.T) {
	name, set := rapid.SampledFrom(setsNames), rapid.SampledFrom(setsParams)
	// Names and a wildcard of one type are not on one stream: see beside.
	wildcards := rapid.Bool().Draw(t, "wildcards")
	t.Repeat(map[string]func(*rapid.T){
		"start": func(t *rapid.T) {
			n, params := name.Draw(t, "name"), set.Draw(t, "params")
			if v := m.views[params]; v.entries[n] == "" && !wildcards {
				v.entries[n] = "requested"
				m.start(params, n)
			}
		},
		"stop": func(t *rapid.T) {
			n, params := name.Draw(t, "name"), set.Draw(t, "params")
			if v := m.views[params]; v.entries[n] != "" {
				delete(v.entries, n)
				m.sets.of(params).stop(n)
			}
		},
		"start set": func(t *rapid.T) {
			params := set.Draw(t, "params")
			if v := m.views[params]; !v.started && wildcards {
				v.started = true
				m.start(params, cache.Wildcard)
			}
		},
		"stop set": func(t *rapid.T) {
			params := set.Draw(t, "params")
			if v := m.views[params]; v.started {
				v.started, v.set = false, nil
				m.sets.of(params).stop(cache.Wildcard)
			}
		},
		"change": func(t *rapid.T) {
			n := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")
			text := fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "text"))
			switch variants := rapid.SampledFrom([]string{"none", "one", "prod", "test", "both"}).Draw(t, "variants"); variants {
			case "none":
				delete(m.world, n)
			case "one":
				m.world[n] = map[string]string{"": text}
			case "both":
				m.world[n] = map[string]string{"env:prod": text, "env:test": fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "text"))}
			default:
				m.world[n] = map[string]string{"env:" + variants: text}
			}
			if m.session != nil && m.server.asked {
				m.push()
			}
		},
		"lost":    func(*rapid.T) { m.lost() },
		"send":    func(*rapid.T) { m.send() },
		"serve":   func(t *rapid.T) { m.serve(rapid.Bool().Draw(t, "split")) },
		"deliver": func(*rapid.T) { m.deliver() },
		"wait": func(*rapid.T) {
			for m.session != nil && len(m.down) > 0 {
				m.deliver() // the parts of an answer do not take that long
			}
			m.now = m.now.Add(time.Second)
		},
		"": m.check,
	})

	for range 3 {
		for range 50 {
			m.send()
			m.serve(false)
			m.deliver()
		}
		m.now = m.now.Add(time.Minute)
	}
	m.send()
	for params, v := range m.views {
		m.compare(t, params, v)
	}
}

func (m *setsModel) compare(t *rapid.T, params string, v *setsView) {
	for n, got := range v.entries {
		want, ok := m.variantOf(params, n)
		if !ok {
			want = "absent"
		}
		if !ok && m.form == sotwForm && m.typ == "eds" && !v.started {
			continue // SotW has no word for that
		}
		if got != want && !(want == "absent" && v.stale[n]) {
			t.Fatalf("{%s} %s is %s, want %s", params, n, got, want)
		}
	}
	want := map[string]string{}
	for n := range m.world {
		if text, ok := m.variantOf(params, n); ok {
			want[n] = text
		}
	}
	maps.DeleteFunc(v.set, func(n, _ string) bool { return v.stale[n] && want[n] == "" })
	if v.started && (v.set == nil || !maps.Equal(v.set, want)) {
		t.Fatalf("{%s} has the set %v, want %v", params, v.set, want)
	}
}

// check holds what must be so at any moment.
func (m *setsModel) check(t *rapid.T) {
	for params, v := range m.views {
		for name := range setsSteady {
			if _, ok := m.variantOf(params, name); !ok {
				continue
			}
			if v.entries[name] == "absent" {
				t.Fatalf("{%s} %s was told absent, and is there all the time", params, name)
			}
			if _, ok := v.set[name]; v.set != nil && !ok {
				t.Fatalf("{%s} %s is missing from the set, and is there all the time", params, name)
			}
		}
	}
}

func (m *setsModel) start(params, name string) {
	subs := m.sets.of(params)
	u := subs.newUpdate()
	m.sets.start(subs, name, nil, &u)
	m.apply(u)
}

func (m *setsModel) apply(updates ...cache.Update) {
	for _, u := range updates {
		v := m.views[u.Scope.Params]
		one := &model{entries: v.entries, sets: map[string]map[string]string{}}
		if v.started {
			one.sets[cache.Wildcard] = v.set
		}
		one.apply(u)
		v.set = one.sets[cache.Wildcard]
	}
}

func (m *setsModel) lost() {
	m.session, m.up, m.down = nil, nil, nil
	m.sets.lost()
}

func (m *setsModel) send() {
	if m.session != nil {
		if m.sets.needStream(m.session.begun()) {
			m.lost()
		}
	}
	if m.session == nil {
		m.server = setsServer{wanted: map[setsLocator]bool{}, known: map[setsVariant]string{}}
		m.session = m.form.session(m.sets)
	}
	m.apply(m.sets.expire(m.now)...)
	m.apply(m.session.conclude(m.now, defaultResponseTimeout, silenceAfter(m.sets.responses > m.sets.before))...)
	m.up = append(m.up, m.session.requests(m.now, 1<<20)...)
	m.sets.prune()
}

func (m *setsModel) deliver() {
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
	m.apply(updates...)
}

func locatorsOf(names []string, list []*discoveryv3.ResourceLocator) (asked []setsLocator) {
	for _, n := range names {
		asked = append(asked, setsLocator{"", n})
	}
	for _, l := range list {
		asked = append(asked, setsLocator{cache.Params(l.GetDynamicParameters()).String(), l.GetName()})
	}
	return asked
}

// serve gives the server the next request, which it answers for each choice of
// parameters by itself, or at once.
func (m *setsModel) serve(split bool) {
	if len(m.up) == 0 {
		return
	}
	req := m.up[0]
	m.up = m.up[1:]
	if req, ok := req.(*discoveryv3.DiscoveryRequest); ok {
		m.serveSotW(req)
		return
	}
	m.serveDelta(req.(*discoveryv3.DeltaDiscoveryRequest), split)
}

func (m *setsModel) serveDelta(req *discoveryv3.DeltaDiscoveryRequest, split bool) {
	s := &m.server
	first := !s.asked
	add := locatorsOf(req.GetResourceNamesSubscribe(), req.GetResourceLocatorsSubscribe())
	if first && len(add) == 0 {
		add = []setsLocator{{"", cache.Wildcard}}
	}
	s.asked = true
	for _, l := range add {
		s.wanted[l] = true
	}
	for _, l := range locatorsOf(req.GetResourceNamesUnsubscribe(), req.GetResourceLocatorsUnsubscribe()) {
		delete(s.wanted, l)
		if wild := (setsLocator{l.params, cache.Wildcard}); s.wanted[wild] && l.name != cache.Wildcard {
			add = append(add, l) // which it still has
		}
	}
	listed := req.GetInitialResourceVersions()
	if first {
		for params, v := range m.views {
			v.stale = map[string]bool{}
			for n := range v.entries {
				if _, ok := m.variantOf(params, n); !ok {
					v.stale[n] = true // and others may ask for it: whom a removal is for cannot be told
				}
			}
			for n := range v.set {
				if _, ok := m.variantOf(params, n); !ok && (m.wantsAny(n) || m.isAsked(n)) {
					v.stale[n] = true
				}
			}
		}
		for n, version := range listed {
			for constraint, text := range m.world[n] {
				if version == versionOf(constraint, text) && m.wants(n, constraint) {
					s.known[setsVariant{n, constraint}] = text
				}
			}
		}
	}
	if !split {
		m.answer(add, first, listed)
		return
	}
	for _, params := range setsParams {
		part := slices.DeleteFunc(slices.Clone(add), func(l setsLocator) bool { return l.params != params })
		m.answer(part, first, listed)
	}
}

// wants says whether a variant is for who has asked for it.
func (m *setsModel) wants(name, constraint string) bool {
	for l := range m.server.wanted {
		if (l.name == name || l.name == cache.Wildcard) && matches(constraint, l.params) {
			return true
		}
	}
	return false
}

// wantsAny says whether a variant of a name is wanted.
func (m *setsModel) wantsAny(name string) bool {
	for constraint := range m.world[name] {
		if m.wants(name, constraint) {
			return true
		}
	}
	return false
}

// isAsked says whether a name is asked for by itself.
func (m *setsModel) isAsked(name string) bool {
	for l := range m.server.wanted {
		if l.name == name {
			return true
		}
	}
	return false
}

// answer answers what was just asked for.
func (m *setsModel) answer(asked []setsLocator, first bool, listed map[string]string) {
	s := &m.server
	send, absent, wildcard := map[setsVariant]bool{}, map[string]bool{}, false
	for _, l := range asked {
		names := []string{l.name}
		if l.name == cache.Wildcard {
			names, wildcard = setsNames, true
		}
		for _, n := range names {
			found := false
			for constraint := range m.world[n] {
				if !matches(constraint, l.params) {
					continue
				}
				found = true
				v := setsVariant{n, constraint}
				if l.name != cache.Wildcard && !first || s.known[v] == "" {
					send[v] = true
				}
			}
			_, was := listed[n]
			nobodys := !m.wantsAny(n)
			if !found && (l.name != cache.Wildcard || first && was && nobodys) {
				absent[n] = true
			}
		}
	}
	if len(send)+len(absent) > 0 || wildcard {
		m.respond(send, absent, nil)
	}
}

func (m *setsModel) respond(send map[setsVariant]bool, absent map[string]bool, gone []setsVariant) {
	s := &m.server
	s.nonce++
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs[m.typ], Nonce: fmt.Sprint(s.nonce)}
	for v := range send {
		s.known[v] = m.world[v.name][v.constraint]
		resp.Resources = append(resp.Resources, m.resource(v))
	}
	for n := range absent {
		if !send[setsVariant{n, ""}] {
			resp.RemovedResources = append(resp.RemovedResources, n)
		}
	}
	for _, v := range gone {
		delete(s.known, v)
		if v.constraint == "" {
			resp.RemovedResources = append(resp.RemovedResources, v.name)
		} else {
			resp.RemovedResourceNames = append(resp.RemovedResourceNames, variantName(v.name, v.constraint))
		}
	}
	m.down = append(m.down, resp)
}

func (m *setsModel) resource(v setsVariant) *discoveryv3.Resource {
	text := m.world[v.name][v.constraint]
	r := &discoveryv3.Resource{
		Name: v.name, Version: versionOf(v.constraint, text),
		Resource: &anypb.Any{TypeUrl: typeURLs[m.typ], Value: value(m.T, m.typ, v.name, text)},
	}
	if v.constraint != "" {
		r.ResourceName, r.Name = variantName(v.name, v.constraint), ""
	}
	return r
}

// push sends what has changed.
func (m *setsModel) push() {
	s := &m.server
	if m.form == sotwForm {
		if !maps.Equal(s.last, m.state()) {
			m.pushSotW()
		}
		return
	}
	send := map[setsVariant]bool{}
	for n, variants := range m.world {
		for constraint, text := range variants {
			if v := (setsVariant{n, constraint}); m.wants(n, constraint) && s.known[v] != text {
				send[v] = true
			}
		}
	}
	var gone []setsVariant
	for v := range s.known {
		if _, there := m.world[v.name][v.constraint]; !there {
			gone = append(gone, v)
		}
	}
	if len(send)+len(gone) > 0 {
		m.respond(send, nil, gone)
	}
}

// state is all that is wanted.
func (m *setsModel) state() map[setsVariant]string {
	state := map[setsVariant]string{}
	for n, variants := range m.world {
		for constraint, text := range variants {
			if m.wants(n, constraint) {
				state[setsVariant{n, constraint}] = text
			}
		}
	}
	return state
}

func (m *setsModel) serveSotW(req *discoveryv3.DiscoveryRequest) {
	s := &m.server
	if s.nonce > 0 && req.GetResponseNonce() != fmt.Sprint(s.nonce) {
		return // stale
	}
	asked := locatorsOf(req.GetResourceNames(), req.GetResourceLocators())
	s.explicit = s.explicit || len(asked) > 0
	if !s.explicit {
		asked = []setsLocator{{"", cache.Wildcard}}
	}
	first := !s.asked
	s.asked = true
	before := s.wanted
	s.wanted = map[setsLocator]bool{}
	more := false
	for _, l := range asked {
		s.wanted[l] = true
		more = more || !before[l]
	}
	// A version that is the present one need not be answered.
	if first && req.GetVersionInfo() == fmt.Sprint(m.world) {
		s.last = m.state()
	} else if more || first {
		m.pushSotW()
	}
}

func (m *setsModel) pushSotW() {
	s := &m.server
	s.nonce++
	s.last = m.state()
	resp := &discoveryv3.DiscoveryResponse{
		TypeUrl: typeURLs[m.typ], Nonce: fmt.Sprint(s.nonce), VersionInfo: fmt.Sprint(m.world),
	}
	for v := range s.last {
		resp.Resources = append(resp.Resources, wrapAny(m.T, m.resource(v)))
	}
	m.down = append(m.down, resp)
}
