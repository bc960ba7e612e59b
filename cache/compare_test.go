package cache

import (
	"fmt"
	"testing"
)

// Before.Replaced returns what an update removes or changes, of entries and of sets, and nothing else.
func TestReplaced(t *testing.T) {
	c, _, _ := newWatchedSet(t)
	c.Watch(testKey("a"), &dirty{})
	c.Watch(testKey("b"), &dirty{})
	full(c, "1", put("a", "x"), put("b", "x"), put("c", "x"))
	c.Apply(Update{Scope: testKey("").Scope, TypeURL: testType, Changes: []Change{put("a", "x"), put("b", "x")}})
	failed := Change{Name: "b", Err: unavailable}
	u := setUpdate(SetUpdate{Name: Wildcard, Changes: []Change{put("a", "x"), put("c", "y"), gone("b"), gone("d"), put("e", "x")}})
	u.Changes = []Change{gone("a"), failed, put("b", "x"), put("b", "y"), gone("c")}
	got := ""
	n := 0
	note := func(set, change int, old *Resource) {
		n++
		got += fmt.Sprintf("%d/%d %s; ", set, change, old.Name())
	}
	before := c.Before(&u, false)
	before.Replaced(&u, note)
	if want := "-1/0 a; -1/3 b; 0/1 c; 0/2 b; "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	u.Sets[0].Err = unavailable
	before, n = c.Before(&u, false), 0
	if before.Replaced(&u, note); n != 2 {
		t.Errorf("a set with an error: got %d, want those of the 2 entries", n)
	}
}
