package upstream

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
)

// With names and a wildcard as with one of them: after any interleaving, with two streams
// of which each is as slow and as often lost as it likes, the cache has what the
// control plane has, and on the way there it never gets that something is gone
// that was there all the time. Here the wildcard is only of some names.

// twoStreamsModel is a model for each stream; they share what the cache would have and
// what the control plane has.
type twoStreamsModel struct {
	*model // the first's, whose entries and set count
	second *model
	sides  []*Stream
}

func TestCacheHasWhatTheControlPlaneHasOverTwoStreams(t *testing.T) {
	for _, typ := range []string{"cds", "eds"} {
		for _, form := range []*form{deltaForm, sotwForm} {
			t.Run(fmt.Sprint(typ, "/", form.name), func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) {
					m := &twoStreamsModel{}
					m.sides = newSides(cache.Scope{}, form, m)
					entries, world := map[string]string{}, map[string]string{"always": "0"}
					for i, side := range m.sides {
						half := newModel(t, typ, form, modelNames, cache.Wildcard)
						half.entries, half.world = entries, world
						half.side = side
						half.hidden = modelOutside
						half.update = func(u cache.Update) { side.apply(half.subs, u) }
						if i == 0 {
							m.model = half
						} else {
							m.second = half
						}
						half.lost()
					}
					m.run(rt)
				})
			})
		}
	}
}

// modelNames are what there may be.
var modelNames = []string{"always", "a", "b", "c"}

// modelOutside are the names that exist, but not for the wildcard.
var modelOutside = map[string]bool{"c": true}

// Apply implements Sink.
func (m *twoStreamsModel) Apply(u cache.Update) {
	if m.sets[cache.Wildcard] == nil {
		// A topic that has ended and begun again before that is noted may get a
		// part of the set first. All of it follows.
		u.Sets = slices.DeleteFunc(slices.Clone(u.Sets), func(s cache.SetUpdate) bool { return !s.Full && s.Err == nil })
	}
	m.apply(u)
}

func (m *twoStreamsModel) note(n note, name string) {
	n.key = cache.Key{TypeURL: typeURLs[m.typ], Name: name}
	m.sides[0].inbox.notes = append(m.sides[0].inbox.notes, n)
}

func (m *twoStreamsModel) run(t *rapid.T) {
	name := rapid.SampledFrom(modelNames)
	// The cache's topics begin and end at once, the notes are taken later.
	steps := map[string]func(*rapid.T){
		"start": func(t *rapid.T) {
			n := name.Draw(t, "name")
			if _, ok := m.entries[n]; !ok {
				m.entries[n] = "requested"
				m.note(note{}, n)
			}
		},
		"stop": func(t *rapid.T) {
			n := name.Draw(t, "name")
			if _, ok := m.entries[n]; ok {
				delete(m.entries, n)
				m.note(note{stop: true}, n)
			}
		},
		"start set": func(*rapid.T) {
			if _, started := m.sets[cache.Wildcard]; !started {
				m.sets[cache.Wildcard] = nil
				m.note(note{}, cache.Wildcard)
			}
		},
		"stop set": func(*rapid.T) {
			if _, started := m.sets[cache.Wildcard]; started {
				delete(m.sets, cache.Wildcard)
				m.note(note{stop: true}, cache.Wildcard)
			}
		},
		"take notes": func(*rapid.T) { m.sides[0].takeNotes() },
		"change": func(t *rapid.T) {
			n := name.Draw(t, "name")
			if n != "always" && rapid.Bool().Draw(t, "gone") {
				delete(m.world, n)
			} else {
				m.world[n] = fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "text"))
			}
			for _, half := range m.halves() {
				if half.live && half.server.asked {
					half.push(nil)
				}
			}
		},
		"wait": func(*rapid.T) {
			m.now, m.second.now = m.now.Add(time.Second), m.second.now.Add(time.Second)
		},
		"": m.check,
	}
	for i, half := range m.halves() {
		of := " " + sideNames[i]
		steps["lost"+of] = func(*rapid.T) { half.lost() }
		steps["send"+of] = func(*rapid.T) { half.send() }
		steps["serve"+of] = func(*rapid.T) { half.serve() }
		steps["deliver"+of] = func(*rapid.T) { half.deliver() }
	}
	t.Repeat(steps)

	m.sides[0].takeNotes()
	for range 3 {
		for range 50 {
			for _, half := range m.halves() {
				half.send()
				half.serve()
				half.deliver()
			}
		}
		m.now, m.second.now = m.now.Add(time.Minute), m.second.now.Add(time.Minute)
	}
	for n, got := range m.entries {
		want, ok := m.world[n]
		if !ok {
			want = "absent"
		}
		if !ok && m.form == sotwForm && m.typ == "eds" {
			continue // SotW has no word for that
		}
		if got != want {
			t.Fatalf("%s is %s, want %s", n, got, want)
		}
	}
	want := maps.Clone(m.world)
	maps.DeleteFunc(want, func(n, _ string) bool { return modelOutside[n] })
	if got, started := m.sets[cache.Wildcard]; started && (got == nil || !maps.Equal(got, want)) {
		t.Fatalf("the set is %v, want %v", got, want)
	}
}

func (m *twoStreamsModel) halves() []*model { return []*model{m.model, m.second} }
