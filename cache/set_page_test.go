package cache

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// All pages together have every member, once if nothing changes, and the names that have only an error. A member that
// changes between two pages comes again.
func TestPagesHaveEveryMember(t *testing.T) {
	c, s, w := newWatchedSet(t)
	var changes []Change
	for i := range 10 {
		changes = append(changes, put(fmt.Sprint("m", i), "one"))
	}
	full(c, "1", changes...)
	delta(c, Change{Name: "bad", Err: &Error{Message: "no"}}, gone("m3"))
	read := func(meanwhile func()) (names []string) {
		var page []SetMember
		for at := (SetPosition{}); ; {
			before := at
			if page, at = s.Page(&w.SetWatch, at, 4, page[:0]); len(page) == 0 && at == before {
				return names
			}
			if len(page) > 4 {
				t.Errorf("a page has %d members", len(page))
			}
			for _, m := range page {
				if !m.Removed {
					names = append(names, m.Key)
				}
			}
			meanwhile()
		}
	}
	want := []string{"bad", "m0", "m1", "m2", "m4", "m5", "m6", "m7", "m8", "m9"}
	got := read(func() {})
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("the pages have %v, want %v", got, want)
	}
	changed := false
	got = read(func() {
		if !changed {
			changed = true
			delta(c, put("m0", "two"), put("m9", "two"))
		}
	})
	if slices.Sort(got); !slices.Equal(slices.Compact(slices.Clone(got)), want) || !slices.Contains(got, "m0") {
		t.Errorf("with a change between them the pages have %v", got)
	}
}

// The times of changes that a set remembers are bounded, exact for the newest changes, and never too early.
func TestTimesOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, w := newWatchedSet(t)
		came := map[string]time.Time{}
		for i := range 10 * maxTimes {
			time.Sleep(time.Second)
			name := fmt.Sprint("m", i)
			came[name] = time.Now()
			delta(c, put(name, "one"))
		}
		if n := len(s.times); n > maxTimes {
			t.Errorf("it remembers %d times", n)
		}
		page, _ := s.Page(&w.SetWatch, SetPosition{}, 1000, nil)
		for i, m := range page {
			switch late := time.Unix(0, m.Since).Sub(came[m.Key]); {
			case late < 0:
				t.Errorf("%s came at %v, and is said to have come at %v", m.Key, came[m.Key], time.Unix(0, m.Since))
			case late > 0 && i >= len(page)-maxTimes/4:
				t.Errorf("%s is one of the newest, and is said to have come %v too late", m.Key, late)
			}
		}
		e, _ := c.Watch(testKey("e"), &counter{})
		c.Apply(update(put("e", "one")))
		at := e.State().Since
		time.Sleep(time.Second)
		c.Apply(update(put("e", "one")))
		if e.State().Since != at {
			t.Error("the same content again is no change")
		}
		c.Apply(update(put("e", "two")))
		if e.State().Since != time.Now().UnixNano() {
			t.Error("another content is a change")
		}
	})
}
