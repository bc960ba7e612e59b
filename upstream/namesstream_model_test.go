package upstream

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/upstream/session"
	"github.com/xds-relay/xds-relay/upstream/session/sessiontest"
)

// With names and a wildcard as with one of them: after any interleaving of two streams,
// each with any delays and losses, the cache has the control plane's state. On the way there it
// never gets the removal of a resource that always existed. Here the wildcard has only some of the
// names.

// twoStreamsModel has a model for each stream. They share the states of the cache and of
// the control plane.
type twoStreamsModel struct {
	*sessiontest.Model // the first's, whose entries and set count
	second             *sessiontest.Model
	sides              []*Stream
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
						half := sessiontest.NewModel(t, t0, typ, form == deltaForm, modelNames, cache.Wildcard)
						half.Entries, half.World = entries, world
						client := &streamClient{side: side, typeURL: typeURLs[typ]}
						half.Client = client
						half.Hidden = modelOutside
						half.Update = func(u cache.Update) {
							if f := client.feed(); f != nil {
								side.deliver(delivery.Response, f.topics, u)
							}
						}
						if i == 0 {
							m.Model = half
						} else {
							m.second = half
						}
						half.Lose()
					}
					m.run(rt)
				})
			})
		}
	}
}

// modelOutside are the names that exist, but not for the wildcard.
var modelOutside = map[string]bool{"c": true}

// Deliver implements delivery.Receiver.
func (m *twoStreamsModel) Deliver(e delivery.Event) {
	for _, u := range e.Types {
		m.apply(u)
	}
}

func (m *twoStreamsModel) apply(u cache.Update) {
	if m.Sets[cache.Wildcard] == nil {
		// A topic that has stopped and started again before the stream has processed that may get a
		// part of the set first. All of it follows.
		u.Sets = slices.DeleteFunc(slices.Clone(u.Sets), func(s cache.SetUpdate) bool { return !s.Extent.Full() && s.Err == nil })
	}
	m.Model.Apply(u)
}

// streamClient is one of two Streams that have no goroutine, as the client of a model.
type streamClient struct {
	side    *Stream
	typeURL string
}

// feed returns the stream's feed of the type, nil if there is none.
func (c *streamClient) feed() *feed { return c.side.feeds[c.typeURL] }

// Start implements sessiontest.Client. Names start by notes.
func (c *streamClient) Start(string) cache.Update { panic("not by itself") }

// Stop implements sessiontest.Client.
func (c *streamClient) Stop(string) { panic("not by itself") }

// Opened implements sessiontest.Client.
func (c *streamClient) Opened() { openSide(c.side) }

// Lost implements sessiontest.Client.
func (c *streamClient) Lost() { loseSide(c.side) }

// NeedsStream implements sessiontest.Client.
func (c *streamClient) NeedsStream() bool {
	f := c.feed()
	return f != nil && (f.stale || f.session != nil && f.topics.NeedStream(f.begun()))
}

// Requests implements sessiontest.Client.
func (c *streamClient) Requests(now time.Time, update func(cache.Update)) []proto.Message {
	f := c.feed()
	if f == nil || f.session == nil {
		return nil
	}
	update(f.topics.Expire(now))
	f.topics.Hear(now) // the control plane answers another type
	update(f.session.Conclude(now, session.DefaultResponseTimeout, silenceAfter(f.topics.Answered())))
	return f.session.Requests(now, 1<<20)
}

// Response implements sessiontest.Client.
func (c *streamClient) Response(now time.Time, b []byte) (u cache.Update, nack string, err error) {
	r, err := c.side.form.spoken.Parse(b)
	f := c.feed()
	if err != nil || f == nil || !f.begun() {
		return u, "", err
	}
	u, nack = f.session.Response(now, r)
	return u, nack, nil
}

// Answered implements sessiontest.Client.
func (c *streamClient) Answered() bool { return c.feed() != nil && c.feed().topics.Answered() }

func (m *twoStreamsModel) note(n note, name string) {
	n.key = cache.Key{TypeURL: typeURLs[m.Type], Name: name}
	m.sides[0].inbox.Add(n)
}

func (m *twoStreamsModel) run(t *rapid.T) {
	name := rapid.SampledFrom(modelNames)
	// The cache's topics start and stop at once, the stream processes the notes later.
	steps := map[string]func(*rapid.T){
		"start": func(t *rapid.T) {
			n := name.Draw(t, "name")
			if _, ok := m.Entries[n]; !ok {
				m.Entries[n] = "requested"
				m.note(note{}, n)
			}
		},
		"stop": func(t *rapid.T) {
			n := name.Draw(t, "name")
			if _, ok := m.Entries[n]; ok {
				delete(m.Entries, n)
				m.note(note{stop: true}, n)
			}
		},
		"start set": func(*rapid.T) {
			if _, started := m.Sets[cache.Wildcard]; !started {
				m.Sets[cache.Wildcard] = nil
				m.note(note{}, cache.Wildcard)
			}
		},
		"stop set": func(*rapid.T) {
			if _, started := m.Sets[cache.Wildcard]; started {
				delete(m.Sets, cache.Wildcard)
				m.note(note{stop: true}, cache.Wildcard)
			}
		},
		"take notes": func(*rapid.T) { m.sides[0].takeNotes() },
		"change": func(t *rapid.T) {
			n := name.Draw(t, "name")
			if n != "always" && rapid.Bool().Draw(t, "gone") {
				delete(m.World, n)
			} else {
				m.World[n] = fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "text"))
			}
			for _, half := range m.halves() {
				if half.Asked() {
					half.Push(nil)
				}
			}
		},
		"wait": func(*rapid.T) {
			m.Now, m.second.Now = m.Now.Add(time.Second), m.second.Now.Add(time.Second)
		},
		"": m.Check,
	}
	for i, half := range m.halves() {
		of := " " + sideNames[i]
		steps["lost"+of] = func(*rapid.T) { half.Lose() }
		steps["send"+of] = func(*rapid.T) { half.Send() }
		steps["serve"+of] = func(*rapid.T) { half.Serve() }
		steps["deliver"+of] = func(*rapid.T) { half.Deliver() }
	}
	t.Repeat(steps)

	m.sides[0].takeNotes()
	for range 3 {
		for range 50 {
			for _, half := range m.halves() {
				half.Send()
				half.Serve()
				half.Deliver()
			}
		}
		m.Now, m.second.Now = m.Now.Add(time.Minute), m.second.Now.Add(time.Minute)
	}
	for n, got := range m.Entries {
		want, ok := m.World[n]
		if !ok {
			want = "absent"
		}
		if !ok && !m.Delta && m.Type == "eds" {
			continue // SotW has no word for that
		}
		if got != want {
			t.Fatalf("%s is %s, want %s", n, got, want)
		}
	}
	want := maps.Clone(m.World)
	maps.DeleteFunc(want, func(n, _ string) bool { return modelOutside[n] })
	if got, started := m.Sets[cache.Wildcard]; started && (got == nil || !maps.Equal(got, want)) {
		t.Fatalf("the set is %v, want %v", got, want)
	}
}

func (m *twoStreamsModel) halves() []*sessiontest.Model {
	return []*sessiontest.Model{m.Model, m.second}
}
