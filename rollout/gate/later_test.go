package gate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/rollout"
)

// trialWorld is a gate with clients, and the contents that they may have.
type trialWorld struct {
	*fixture
	members []*Member
	// may has the contents that may be accepted, by name: those that were accepted, and those that a client has
	// ACKed.
	may map[string]map[string]bool
	// fixed is the state of the new side since the first clients have it, while there are clients.
	fixed    map[string]string
	fixedOne string
}

func (w *trialWorld) allow(name, content string) {
	if w.may[name] == nil {
		w.may[name] = map[string]bool{}
	}
	w.may[name][content] = true
}

func (w *trialWorld) allowAll(contents map[string]string, one string) {
	for name, content := range contents {
		w.allow(name, content)
	}
	w.allow("entry", one)
}

// each makes the clients on the new side do something, and reports whether there are any.
func (w *trialWorld) each(do func(m *Member, showing uint64)) (some bool) {
	for _, m := range w.members {
		if showing := m.Showing(); showing != 0 {
			some = true
			do(m, showing)
		}
	}
	return some
}

func (w *trialWorld) look() {
	w.step()
	has, one := membersOf(w.set, w.cache), contentOf(w.entry)
	for name, content := range has {
		if !w.may[name][content] {
			w.Fatalf("%s is accepted as %q, which no client has taken", name, content)
		}
	}
	if one != "" && !w.may["entry"][one] {
		w.Fatalf("the entry is accepted as %q, which no client has taken", one)
	}
	isNew, newOne := membersOf(w.newSet, w.cache), contentOf(w.newOne)
	if !w.gate.machine.Began() || !w.each(func(*Member, uint64) {}) {
		w.fixed = nil
		return
	}
	if w.fixed == nil {
		w.fixed, w.fixedOne = isNew, newOne
	}
	if !maps.Equal(w.fixed, isNew) || w.fixedOne != newOne {
		w.Fatalf("after the first clients, the new side changes from %v %q to %v %q", w.fixed, w.fixedOne, isNew, newOne)
	}
}

// pass lets a soak pass.
func (w *trialWorld) pass() { w.gate.began = w.gate.began.Add(-time.Hour) }

func (w *trialWorld) ack() {
	if w.each(func(m *Member, showing uint64) { m.Sent(showing); m.Acked(showing) }) {
		w.allowAll(membersOf(w.newSet, w.cache), contentOf(w.newOne))
	}
	w.look()
}

// reject makes the first client on the new side reject the set's new members.
func (w *trialWorld) reject(knows bool) {
	var news []uint64
	accepted := membersOf(w.set, w.cache)
	w.cache.Contents(w.newSet.Key(), func(key string, r *cache.Resource) {
		if knows && accepted[key] != r.Version() {
			news = append(news, r.Hash())
		}
	})
	one := false
	w.each(func(m *Member, showing uint64) {
		if !one {
			m.Sent(showing)
			m.Rejected(showing, "no", chain.Rejecters{}, news)
		}
		one = true
	})
	w.look()
}

// TestNothingIsAcceptedThatNoClientHasTaken: for any updates of the source, no content is accepted that no client has
// ACKed. While a rollout is past its first clients, clients with the change see nothing else. Once the source is
// quiet, all changes get through.
func TestNothingIsAcceptedThatNoClientHasTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &trialWorld{fixture: newFixture(t), may: map[string]map[string]bool{}}
		w.source["a"], w.source["b"], w.one = "1", "1", "1"
		w.send(true)
		w.allowAll(w.source, w.one)
		for i := range rapid.IntRange(1, 4).Draw(t, "clients") {
			m, _ := w.gate.controller.Join(w.scope, Client{Node: fmt.Sprint(i), Cohort: "c", Eligible: true, Wake: func() {}})
			m.Settled()
			w.members = append(w.members, m)
		}
		w.look()
		change := func(t *rapid.T) []string {
			names := []string{}
			for range rapid.IntRange(1, 2).Draw(t, "changes") {
				name, content := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"), rapid.SampledFrom([]string{"1", "2", "3", ""}).Draw(t, "content")
				if names = append(names, name); content == "" {
					delete(w.source, name)
				} else {
					w.source[name] = content
				}
			}
			if rapid.Bool().Draw(t, "with the entry") {
				w.one = rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "one")
			}
			return names
		}
		t.Repeat(map[string]func(*rapid.T){
			"part":   func(t *rapid.T) { w.send(false, change(t)...); w.look() },
			"full":   func(t *rapid.T) { change(t); w.send(true); w.look() },
			"ack":    func(*rapid.T) { w.ack() },
			"reject": func(t *rapid.T) { w.reject(rapid.Bool().Draw(t, "knows what is new")) },
			"pass":   func(*rapid.T) { w.pass(); w.look() },
			"approve": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "yes") == 0 && w.gate.controller.Approve(Which{}) > 0 {
					w.allowAll(w.source, w.one)
					w.look()
					w.check(true)
				}
			},
			"freeze": func(t *rapid.T) { w.gate.controller.Freeze(Which{}); w.look() },
			"thaw":   func(t *rapid.T) { w.gate.controller.Thaw(Which{}); w.look() },
		})
		// Refused content stays refused. All other changes get through.
		w.gate.controller.Thaw(Which{})
		w.look()
		w.source["a"], w.source["b"], w.source["c"], w.one = "last", "last", "last", "last"
		w.send(true)
		for range 40 {
			w.ack()
			w.pass()
			w.ack()
		}
		w.check(true)
		for _, m := range slices.Backward(w.members) {
			m.Leave(false)
		}
		w.cache.Close()
	})
}

// A control plane sends a resource twice if some clients subscribe to it by name and others by wildcard. A change
// that was refused on one topic is also refused on the other.
func TestTheSameResourceOnTwoTopicsIsOneChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFixture(t)
		f.source["a"], f.source[oneName], f.one = "1", "1", "1"
		f.send(true)
		f.source[oneName] = "2"
		f.send(false, oneName)
		content, _ := f.gate.pending.content()
		if f.gate.controller.Reject(Which{}, "no") != 1 {
			t.Fatal("nothing was to be rejected")
		}
		f.step()
		f.one = "2"
		f.send(false)
		if is, _ := f.gate.pending.content(); is != content {
			t.Fatalf("the content is %q with one topic, and %q with two", content, is)
		}
		if p := f.gate.machine.Phase(); p != rollout.Stopped {
			t.Fatalf("%s: what was refused is tried again", p)
		}
	})
}

// Operators compare the sizes of resources, without the message around them.
func TestThreeTimesTheSizeWaitsForAPerson(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFixture(t)
		f.gate.opts.Load().Grow = 3
		size := rapid.IntRange(1, 1000).Draw(t, "bytes")
		f.source["a"] = strings.Repeat("x", size)
		f.send(true)
		f.source["a"] = strings.Repeat("y", 3*size-1)
		f.send(true)
		if f.gate.pending.nWaits != 0 {
			t.Fatal("less than three times the size waits")
		}
		f.source["a"] = strings.Repeat("y", 3*size)
		f.send(true)
		if f.gate.pending.nWaits != 1 {
			t.Fatal("three times the size does not wait")
		}
	})
}

// A Listener that waits for a person may take the place of a removed one. So the removal waits with it, in whatever order
// they come, and goes with it.
func TestARemovalWaitsWithResourcesOfItsType(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFixture(t)
		f.gate.opts.Load().Grow = 3
		f.source["a"], f.source["b"], f.source["c"], f.one = "1", "1", "1", "1"
		f.send(true)
		f.check(true)
		inParts := rapid.Bool().Draw(t, "in parts")
		want := func(when string, want map[string]string) {
			t.Helper()
			if is := membersOf(f.newSet, f.cache); !maps.Equal(is, want) {
				t.Fatalf("%s: the new side has %v, want %v", when, is, want)
			}
		}
		delete(f.source, "a")
		if inParts {
			f.send(rapid.Bool().Draw(t, "full"))
			f.send(false, "a")
			want("removed", map[string]string{"b": "1", "c": "1"})
		}
		f.source["b"], f.source["c"] = "1111", "2"
		f.send(rapid.Bool().Draw(t, "full"), rapid.Permutation([]string{"a", "b", "c"}).Draw(t, "order")...)
		want("with one that waits", map[string]string{"a": "1", "b": "1", "c": "2"})
		for k, topic := range maps.Clone(f.gate.topics) {
			delete(f.gate.topics, k)
			f.cache.Unwatch(topic)
			f.gate.fill(k)
		}
		want("filled", map[string]string{"a": "1", "b": "1", "c": "2"})
		if rapid.Bool().Draw(t, "shrinks") {
			f.source["b"] = "2"
			f.send(false, "b")
			want("when none waits", map[string]string{"b": "2", "c": "2"})
			f.check(false)
		}
		f.gate.controller.Approve(Which{})
		f.step()
		f.gate.controller.Approve(Which{})
		f.step()
		f.check(true)
	})
}

// A removal that waits for a person takes the place of a change that the first clients have: they go back to the
// accepted resource.
func TestARemovalThatWaitsEndsTheChangeBeforeIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFixture(t)
		f.gate.opts.Load().Grow = 3
		f.source["a"], f.source["b"], f.one = "1", "1", "1"
		f.send(true)
		f.source["a"], f.source["b"] = "2", "1111"
		f.send(true)
		delete(f.source, "a")
		f.send(rapid.Bool().Draw(t, "full"), "a")
		if is, want := membersOf(f.newSet, f.cache), (map[string]string{"a": "1", "b": "1"}); !maps.Equal(is, want) {
			t.Fatalf("the new side has %v, want %v", is, want)
		}
	})
}
