package downstream

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
)

// sidesHost is a rollout of which a test decides who is on the new side, and what is new there.
type sidesHost struct {
	cache    *cache.Cache
	server   *Server
	trials   []*scriptedTrial
	showings uint64
	started  map[string]bool // names of which there is a topic on the new side
	filled   map[string]bool // those that have an answer
	accepted map[string]string
	pending  map[string]string
}

func newSidesHost(limit int) *sidesHost {
	h := &sidesHost{started: map[string]bool{}, filled: map[string]bool{}, accepted: map[string]string{}, pending: map[string]string{}}
	h.cache = newTestCache(h, 1000)
	h.server = NewServer(h.cache, newClusterNames, Options{MaxResponseBytes: limit, Log: slog.New(slog.DiscardHandler), Rollouts: h})
	return h
}

// Start implements cache.Source.
func (h *sidesHost) Start(k cache.Key) {
	if k.Scope.New {
		h.started[k.Name] = true
	}
}

// Refresh implements cache.Source.
func (h *sidesHost) Refresh(cache.Key) {}

// Stop implements cache.Source.
func (h *sidesHost) Stop(k cache.Key) {
	if k.Scope.New {
		delete(h.started, k.Name)
		delete(h.filled, k.Name)
	}
}

// Join implements Rollouts.
func (h *sidesHost) Join(scope cache.Scope, c TrialClient) (Trial, uint64) {
	t := &scriptedTrial{scope: scope, wake: c.Wake, showing: []uint64{0}, news: map[string]bool{}, differing: h.differing()}
	h.trials = append(h.trials, t)
	return t, 0
}

func (h *sidesHost) differing() []string { return slices.Sorted(maps.Keys(h.pending)) }

// put has a name be something on some sides: a content, or nothing if that is empty.
func (h *sidesHost) put(name, content string, onNew ...bool) {
	for _, isNew := range onNew {
		if isNew && !h.filled[name] {
			continue
		}
		c := cache.Change{Name: name, Gone: content == ""}
		switch content {
		case "":
		case "broken":
			c = cache.Change{Name: name, Err: &cache.Error{Code: codes.Internal, Message: "broken"}}
		default:
			c.Resource = newTestResource(endpointType, name, content, content)
		}
		scope := oldStyleScope("")
		scope.New = isNew
		h.cache.Apply(cache.Update{Scope: scope, TypeURL: endpointType, Changes: []cache.Change{c}})
	}
}

// fill gives the topics of the new side what they have: what is accepted, with what is pending in its place.
func (h *sidesHost) fill() {
	for name := range h.started {
		if !h.filled[name] {
			h.filled[name] = true
			h.put(name, h.view(name, true), true)
		}
	}
}

// view is what a name is on a side.
func (h *sidesHost) view(name string, isNew bool) string {
	if content, ok := h.pending[name]; ok && isNew {
		return content
	}
	return h.accepted[name]
}

// accept has what is pending be accepted, and drop has it be forgotten.
func (h *sidesHost) accept() {
	for name, content := range h.pending {
		h.accepted[name] = content
		h.put(name, content, false)
	}
	h.drop()
}

func (h *sidesHost) drop() {
	for name := range h.pending {
		delete(h.pending, name)
		h.put(name, h.accepted[name], true)
	}
	h.ask()
}

// ask has those on the new side look at what differs there.
func (h *sidesHost) ask() {
	for _, t := range h.trials {
		t.differing = h.differing()
		t.asked++
		t.wake()
	}
}

// TestClientsOfAGroupOnTwoSides: a rollout shows the new state to clients of one group, and hides it again. Whenever
// each client reads, it has the state of its side. None is sent again what it has, and as long as the names have plain
// resources, all clients stay in the group that have rejected nothing.
func TestClientsOfAGroupOnTwoSides(t *testing.T) {
	shared, apart := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		plain := rapid.Bool().Draw(t, "plain")
		h := newSidesHost(rapid.SampledFrom([]int{DefaultMaxResponseBytes, DefaultMaxResponseBytes, 400}).Draw(t, "limit"))
		defer h.cache.Close()
		names := []string{"a", "b", "c", "d", "e"}
		contents := []string{"x", "y", "z"}
		if !plain {
			contents = append(contents, "", "broken")
		}
		for _, name := range names {
			h.accepted[name] = "x"
		}
		var clients []*groupClient
		var trials []*scriptedTrial
		versions := map[string]string{}
		check := func(cl *groupClient, isNew bool) {
			for _, name := range names {
				want, is := h.view(name, isNew), cl.has[name]
				if _, failed := cl.errors[name]; failed && want == "" {
					continue
				}
				if want != "broken" && is != "" && is != want+"0s" || want != "" && want != "broken" && is == "" {
					t.Fatalf("%s, on the new side %v: %s is %q, want %q", cl.st.form, isNew, name, is, want)
				}
			}
			if m := cl.memory(endpointType); cl.st.form == sotwForm.name && plain && m.version != "" {
				if has := fmt.Sprint(cl.has); versions[m.version] == "" {
					versions[m.version] = has
				} else if versions[m.version] != has {
					t.Fatalf("version %s stands for %s and for %s", m.version, versions[m.version], has)
				}
			}
		}
		for i := range 6 {
			cl := newGroupClient(h.server, []string{deltaForm.name, sotwForm.name}[i%2])
			defer cl.close()
			cl.asks(t, names, nil)
			if i == 0 {
				for _, name := range names {
					h.put(name, "x", false)
				}
			}
			cl.reads(t, false)
			// A client that cannot be in the group has joined twice.
			clients, trials = append(clients, cl), append(trials, h.trials[len(h.trials)-1])
		}
		name, content := rapid.SampledFrom(names), rapid.SampledFrom(contents)
		one := rapid.IntRange(0, len(clients)-1)
		changed := func() {
			for _, cl := range clients {
				cl.missed++
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { changed() },
			"an accepted change": func(t *rapid.T) {
				n, is := name.Draw(t, "name"), content.Draw(t, "content")
				h.accepted[n] = is
				h.put(n, is, false)
				if _, is := h.pending[n]; !is {
					h.put(n, h.accepted[n], true)
				}
			},
			"a new change": func(t *rapid.T) {
				n := name.Draw(t, "name")
				h.pending[n] = rapid.SampledFrom([]string{"p", "q", "x"}).Draw(t, "content")
				h.put(n, h.pending[n], true)
				h.ask()
			},
			"all are new": func(*rapid.T) {
				for _, n := range names {
					h.pending[n] = "p"
					h.put(n, "p", true)
				}
				h.ask()
			},
			"shows": func(t *rapid.T) {
				h.showings++
				trial := trials[one.Draw(t, "client")]
				trial.showing = []uint64{h.showings}
				trial.wake()
			},
			"hides": func(t *rapid.T) {
				trial := trials[one.Draw(t, "client")]
				trial.showing = []uint64{0}
				trial.wake()
			},
			"accepts": func(*rapid.T) { h.accept() },
			"drops":   func(*rapid.T) { h.drop() },
			"fills":   func(*rapid.T) { h.fill() },
			"reads": func(t *rapid.T) {
				i := one.Draw(t, "client")
				clients[i].reads(t, rapid.Bool().Draw(t, "reject"))
			},
		})
		for round := range 2 {
			for i, cl := range clients {
				cl.reads(t, false)
				h.fill()
				cl.reads(t, false)
				check(cl, trials[i].showing[0] != 0)
				if apartNow := !cl.shares() || cl.st.sessions[0].SubscribedAlone() > 0; apartNow && i > 1 {
					if apart++; plain && !cl.refused && h.server.options.MaxResponseBytes == DefaultMaxResponseBytes {
						t.Errorf("client %d is not in the group any more", i)
					}
				} else if i > 1 {
					shared++
				}
			}
			if round == 0 {
				for _, trial := range trials {
					trial.showing = []uint64{0}
					trial.wake()
				}
			}
		}
	})
	if shared == 0 || apart == 0 {
		t.Errorf("%d clients were in the group at the end, and %d were not any more, want some of both", shared, apart)
	}
}
