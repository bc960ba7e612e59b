package cache

import (
	"strconv"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/wire"
)

// namesIn returns the names of the resources in a full state.
func namesIn(t *testing.T, f FullState) map[string]bool {
	t.Helper()
	var r discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(f.Resources.ReadOnlyData(), &r); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, a := range r.GetResources() {
		name, err := wire.InnerName(a.GetValue())
		if err != nil {
			t.Fatal(err)
		}
		names[name] = true
	}
	if len(names) != f.Len {
		t.Errorf("%d resources, and Len says %d", len(names), f.Len)
	}
	return names
}

func noChange(Member) {}

func noLook(func(string) *Resource) {}

// xDS: "Eventual consistency considerations": what was removed stays in the state
// until its removal may be reported.
func TestExtendedStateHasWhatTheWatcherKnewAndIsRemoved(t *testing.T) {
	c, s, w := newWatchedSet(t)
	full(c, "", put("a", "1"), put("b", "1"))
	before := s.Full(&w.SetWatch, 0, nil, noChange, noLook)
	full(c, "", put("b", "1"), put("c", "1")) // a goes, c comes
	if changes, removals, _ := s.Pending(&w.SetWatch, 0); !changes || !removals {
		t.Fatalf("due: changes %v, removals %v", changes, removals)
	}
	var changed []string
	extended := s.FullWithRemoved(&w.SetWatch, 0, nil, func(m Member) { changed = append(changed, m.Name) }, noLook)
	if names := namesIn(t, extended); !names["a"] || !names["b"] || !names["c"] {
		t.Errorf("the extended state has %v, want a, b and c", names)
	}
	if len(changed) != 1 || changed[0] != "c" {
		t.Errorf("changed are %v, want c", changed)
	}
	if changes, removals, _ := s.Pending(&w.SetWatch, 0); changes || !removals {
		t.Errorf("then due: changes %v, removals %v, want the removal alone", changes, removals)
	}
	changed = nil
	after := s.Full(&w.SetWatch, 0, nil, func(m Member) {
		if m.News != Removed {
			t.Errorf("%s has changed again", m.Name)
		}
		changed = append(changed, m.Name)
	}, noLook)
	if len(changed) != 1 || changed[0] != "a" {
		t.Errorf("then removed are %v, want a", changed)
	}
	if names := namesIn(t, after); names["a"] || !names["b"] || !names["c"] {
		t.Errorf("the full state has %v, want b and c", names)
	}
	if before.Version == extended.Version || extended.Version == after.Version || before.Version == after.Version {
		t.Errorf("three states have the versions %s, %s, %s", before.Version, extended.Version, after.Version)
	}
	if changes, removals, _ := s.Pending(&w.SetWatch, 0); changes || removals {
		t.Errorf("all reported, and due: changes %v, removals %v", changes, removals)
	}
}

// Watchers in step share the bytes, as they share those of a full state.
func TestWatchersInStepShareTheExtendedState(t *testing.T) {
	c, s, w := newWatchedSet(t)
	full(c, "", put("a", "1"), put("b", "1"))
	var other SetWatch
	s.Full(&w.SetWatch, 0, nil, noChange, noLook)
	s.Full(&other, 0, nil, noChange, noLook)
	full(c, "", put("b", "1"), put("c", "1"))
	one, two := s.FullWithRemoved(&w.SetWatch, 0, nil, noChange, noLook), s.FullWithRemoved(&other, 0, nil, noChange, noLook)
	if &one.Resources.ReadOnlyData()[0] != &two.Resources.ReadOnlyData()[0] {
		t.Error("two watchers in step have two copies")
	}
	var late SetWatch
	if three := s.FullWithRemoved(&late, 0, nil, noChange, noLook); namesIn(t, three)["a"] {
		t.Error("a watcher that was notified of nothing is given what was removed")
	}
}

// If a name could not be fetched, it may still exist.
func TestSetDistinguishesFailedFromMissingNames(t *testing.T) {
	c, s, _ := newWatchedSet(t)
	full(c, "", put("a", "1"), Change{Name: "bad", Err: unavailable})
	if !s.Failed("bad") || s.Failed("a") || s.Failed("none") {
		t.Errorf("failed: bad %v, a %v, none %v", s.Failed("bad"), s.Failed("a"), s.Failed("none"))
	}
	delta(c, put("bad", "1"))
	if s.Failed("bad") || s.Member("bad") == nil {
		t.Error("a member that has come has failed still")
	}
	delta(c, Change{Name: "bad", Err: unavailable})
	if s.Failed("bad") || s.Member("bad") == nil {
		t.Error("a member that could not be fetched again is no longer a member")
	}
	full(c, "", put("a", "1"))
	if s.Failed("bad") || s.Member("bad") != nil {
		t.Error("a member that is gone is remembered")
	}
}

// What was removed stays in every state until its removal may be reported, also what
// the watcher knows only from a state that had removed members in it already.
func TestExtendedStatesFollowEachOther(t *testing.T) {
	c, s, w := newWatchedSet(t)
	full(c, "", put("a", "1"))
	s.Full(&w.SetWatch, 0, nil, noChange, noLook)
	has := func(step string, want ...string) {
		t.Helper()
		names := namesIn(t, s.FullWithRemoved(&w.SetWatch, 0, nil, noChange, noLook))
		for _, name := range want {
			if !names[name] {
				t.Errorf("%s: the extended state has %v, want %v", step, names, want)
			}
		}
		if len(names) != len(want) {
			t.Errorf("%s: the extended state has %v, want %v", step, names, want)
		}
	}
	full(c, "", put("b", "1")) // a goes, b comes
	has("a was removed", "a", "b")
	full(c, "", put("c", "1"), put("never reported", "1"))
	full(c, "", put("c", "1"))
	has("b was removed", "a", "b", "c")
	full(c, "", put("c", "1"), put("d", "1"))
	has("a and b are still in", "a", "b", "c", "d")
	full(c, "", put("b", "2"), put("d", "1"))
	has("c was removed, b is back", "a", "b", "c", "d")
	if changes, removals, _ := s.Pending(&w.SetWatch, 0); changes || !removals {
		t.Errorf("then due: changes %v, removals %v, want removals alone", changes, removals)
	}
	if names := namesIn(t, s.Full(&w.SetWatch, 0, nil, noChange, noLook)); len(names) != 2 || !names["b"] || !names["d"] {
		t.Errorf("the full state has %v, want b and d", names)
	}
	if w.between != nil {
		t.Errorf("all reported, and %v is remembered", w.between)
	}
}

// What a watcher knows is remembered for it, however much comes and goes.
func TestExtendedStatesOutliveTheSweep(t *testing.T) {
	c, s, w := newWatchedSet(t)
	full(c, "", put("a", "1"))
	s.Full(&w.SetWatch, 0, nil, noChange, noLook)
	delta(c, put("b", "1"))
	s.FullWithRemoved(&w.SetWatch, 0, nil, noChange, noLook)
	delta(c, Change{Name: "b", Gone: true})
	s.FullWithRemoved(&w.SetWatch, 0, nil, noChange, noLook)
	for i := range 10 * minSweep {
		name := strconv.Itoa(i)
		delta(c, put(name, "1"))
		delta(c, Change{Name: name, Gone: true})
	}
	if n := s.members.Len(); n > 2*minSweep {
		t.Errorf("%d members are remembered", n)
	}
	if names := namesIn(t, s.FullWithRemoved(&w.SetWatch, 0, nil, noChange, noLook)); len(names) != 2 || !names["a"] || !names["b"] {
		t.Errorf("the extended state has %v, want a and b", names)
	}
}
