package cache

import (
	"fmt"
	"testing"
)

// Browse yields every name and every member once, although it releases the locks in between. The caller may
// stop at any item.
func TestBrowseYieldsEveryNameAndMember(t *testing.T) {
	const n = 2*atOnce + 7
	c, _, _ := newWatchedSet(t)
	c.Watch(testKey("requested"), &countingWatcher{})
	var all []Change
	want := map[string]bool{"requested": true}
	for i := range n {
		name := fmt.Sprintf("m%d", i)
		want[name] = true
		all = append(all, Change{Name: name, Resource: NewResource(Spec{Name: name, Version: "1", TypeURL: testType, Value: []byte(name)})})
	}
	full(c, "1", all...)
	c.Apply(setUpdate(SetUpdate{Changes: []Change{{Name: "m1"}}})) // is gone
	delete(want, "m1")
	seen := map[string]bool{}
	c.Browse(testScope, testType, func(i Item) bool {
		if seen[i.Key.Name] {
			t.Errorf("%s comes twice", i.Key.Name)
		}
		if has := i.Resource != nil; has != (i.Status == Present) || has == (i.Key.Name == "requested") {
			t.Errorf("%s is %v", i.Key.Name, i.Status)
		}
		seen[i.Key.Name] = true
		return true
	})
	if len(seen) != len(want) {
		t.Errorf("%d names came, want %d", len(seen), len(want))
	}
	for _, stop := range []int{1, 2, atOnce, atOnce + 1, n} {
		came := 0
		c.Browse(testScope, "", func(Item) bool {
			came++
			return came < stop
		})
		if came != stop {
			t.Errorf("%d names came after a stop at %d", came, stop)
		}
	}
	c.Browse(testScope, "another type", func(Item) bool { t.Error("another type has a name"); return true })
}

// A complete wildcard shows what does not exist; a wildcard without an answer, or with a gap, does not.
func TestLookSaysWhatIsKnown(t *testing.T) {
	c, _, _ := newWatchedSet(t)
	look := func(name string) string {
		i, found := c.Look(testKey(name))
		if !found {
			return "unknown"
		}
		return i.Status.String()
	}
	expect := func(name, want string) {
		t.Helper()
		if got := look(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	expect("a", "unknown")
	c.Watch(testKey("b"), &countingWatcher{})
	expect("b", "requested")
	a := Change{Name: "a", Resource: NewResource(Spec{Name: "a", Version: "1", TypeURL: testType, Value: []byte("a")})}
	full(c, "1", a)
	expect("a", "present")
	expect("c", "absent")
	expect("b", "requested") // it has a topic of its own
	c.Apply(setUpdate(SetUpdate{Changes: []Change{a}, Extent: Whole, Partial: true}))
	expect("c", "unknown")
	if n, status, found := c.LookSet(testKey(Wildcard)); n != 1 || status != Present || !found {
		t.Errorf("the wildcard has %d members, and is %v, %v", n, status, found)
	}
	if _, _, found := c.LookSet(Key{Scope: testScope, TypeURL: "another", Name: Wildcard}); found {
		t.Error("a wildcard is found that nobody requested")
	}
}
