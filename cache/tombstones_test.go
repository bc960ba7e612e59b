package cache

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

const testGlob = "xdstp://a/T/foo/*"

func globMember(i int) string { return fmt.Sprintf("xdstp://a/T/foo/%d", i) }

func applyGlob(c *Cache, u SetUpdate) {
	u.Name = testGlob
	c.Apply(Update{Scope: testScope, TypeURL: testType, Sets: []SetUpdate{u}})
}

func deltaGlob(c *Cache, changes ...Change) { applyGlob(c, SetUpdate{Changes: changes}) }

// goneFrom returns the removed names that the set remembers.
func goneFrom(s *Set) []string {
	var names []string
	s.RecentlyRemoved(func(name, _ string) { names = append(names, name) })
	slices.Sort(names)
	return names
}

func expectGone(t *testing.T, when string, s *Set, want ...string) {
	t.Helper()
	if got := goneFrom(s); !slices.Equal(got, want) {
		t.Errorf("%s: %v are remembered as gone, want %v", when, got, want)
	}
}

func TestTombstonesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 1000
		c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 1, Tombstones: Tombstones{TTL: 10 * time.Minute, Limit: limit}})
		defer c.Close()
		w := &setCounter{}
		s := c.WatchSet(testKey(testGlob), w)
		const many = 50_000
		for i := range many {
			deltaGlob(c, put(globMember(i), "x"))
			since(s, &w.SetWatch, -1)
			deltaGlob(c, gone(globMember(i)))
			since(s, &w.SetWatch, -1)
		}
		if n := len(goneFrom(s)); n < limit || n > limit+minSweep+1 {
			t.Errorf("%d are remembered as gone, want about %d", n, limit)
		}
		if n := s.members.Len() + len(s.removals); n > 2*minSweep+2 {
			t.Errorf("%d members are remembered as such", n)
		}
		if !slices.Contains(goneFrom(s), globMember(many-1)) {
			t.Error("the newest removal is forgotten")
		}
		time.Sleep(10*time.Minute - 1)
		if len(goneFrom(s)) == 0 {
			t.Error("forgotten before their time")
		}
		time.Sleep(time.Nanosecond)
		expectGone(t, "after their time", s)
		deltaGlob(c, put("xdstp://a/T/foo/x", "x"))
		if n := s.tombstones.Len(); n > 0 {
			t.Errorf("%d are still in memory after their time", n)
		}
	})
}

// Updates free the memory of expired tombstones, even if nobody reads them.
func TestTombstonesExpireWithoutBeingRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 1, Tombstones: Tombstones{TTL: time.Minute, Limit: 1000}})
		defer c.Close()
		w := &setCounter{}
		s := c.WatchSet(testKey(testGlob), w)
		for i := range 500 {
			deltaGlob(c, put(globMember(i), "x"))
			deltaGlob(c, gone(globMember(i)))
		}
		time.Sleep(time.Minute)
		deltaGlob(c, put(globMember(1), "x"))
		if n := s.tombstones.Len(); n > 0 {
			t.Errorf("%d are still in memory after their time", n)
		}
	})
}

// The glob outlives its watchers for the linger time, and remembers removals during that time.
func TestTombstonesOutliveTheWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(newFeeds(), Options{Linger: 5 * time.Minute, IdleEntries: 10, Tombstones: Tombstones{TTL: 10 * time.Minute, Limit: 10}})
		defer c.Close()
		w := &setCounter{}
		s := c.WatchSet(testKey(testGlob), w)
		deltaGlob(c, put(globMember(1), "x"), put(globMember(2), "x"), put(globMember(3), "x"))
		c.Unwatch(w)
		deltaGlob(c, gone(globMember(1)), gone(globMember(2)))
		deltaGlob(c, put(globMember(2), "x"))
		time.Sleep(4 * time.Minute)
		if c.WatchSet(testKey(testGlob), w) != s {
			t.Fatal("the set is another one")
		}
		expectGone(t, "after the clients were away", s, globMember(1))
		applyGlob(c, SetUpdate{Extent: Whole})
		expectGone(t, "after all went", s, globMember(1), globMember(2), globMember(3))
		// Whom nobody here has seen, others may have.
		deltaGlob(c, gone(globMember(4)))
		expectGone(t, "after one that never was", s, globMember(1), globMember(2), globMember(3), globMember(4))
	})
}

// Wildcards have none: clients report what they hold of a wildcard when they reconnect.
func TestWildcardsHaveNoTombstones(t *testing.T) {
	c := New(newFeeds(), Options{Linger: time.Hour, Tombstones: Tombstones{TTL: time.Hour, Limit: 10}})
	defer c.Close()
	s := c.WatchSet(testKey(Wildcard), &setCounter{})
	delta(c, put("a", "x"))
	delta(c, gone("a"))
	expectGone(t, "of a wildcard", s)
}

// However members come, go and are swept: every remembered name was removed and is not a member, and
// the newest removal is remembered.
func TestTombstonesAreOfWhatIsGone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New(newFeeds(), Options{Linger: time.Hour, Tombstones: Tombstones{TTL: time.Hour, Limit: 3}})
		defer c.Close()
		var watchers []*setCounter
		for range 3 {
			w := &setCounter{}
			c.WatchSet(testKey(testGlob), w)
			watchers = append(watchers, w)
		}
		s := c.WatchSet(testKey(testGlob), &setCounter{})
		there, went := map[string]bool{}, map[string]bool{}
		last := ""
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				name := globMember(rapid.IntRange(0, 9).Draw(t, "member"))
				deltaGlob(c, put(name, rapid.StringMatching("[xy]").Draw(t, "content")))
				there[name] = true
				if name == last {
					last = ""
				}
			},
			"remove": func(t *rapid.T) {
				name := globMember(rapid.IntRange(0, 9).Draw(t, "member"))
				deltaGlob(c, gone(name))
				if last = name; went[name] && !there[name] {
					last = "" // said twice, which may count or not
				}
				delete(there, name)
				went[name] = true
			},
			"read": func(t *rapid.T) {
				since(s, &rapid.SampledFrom(watchers).Draw(t, "watcher").SetWatch, rapid.IntRange(-1, 3).Draw(t, "n"))
			},
			"sweep": func(*rapid.T) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.sweep()
			},
			"": func(t *rapid.T) {
				names := goneFrom(s)
				for _, name := range names {
					if there[name] || !went[name] {
						t.Fatalf("%s is remembered as gone (it is there: %v)", name, there[name])
					}
				}
				if len(slices.Compact(names)) != len(names) {
					t.Fatalf("remembered twice: %v", names)
				}
				if last != "" && !slices.Contains(names, last) {
					t.Fatalf("%s was the last to go, and is forgotten: %v", last, names)
				}
			},
		})
	})
}

// What a watcher has received from a set, when it leaves the set.
func TestHeldIsWhatWasSent(t *testing.T) {
	c, s, w := newWatchedSet(t)
	full(c, "", put("a", "x"), put("b", "x"), put("c", "x"), put("d", "x"))
	since(s, &w.SetWatch, -1)
	delta(c, put("b", "y"), gone("c"), put("new", "x"))
	held := func() string {
		var all []string
		s.SentTo(&w.SetWatch, func(name, version string) {
			if version != "" {
				name += "!"
			}
			all = append(all, name)
		})
		slices.Sort(all)
		return fmt.Sprint(all)
	}
	if got, want := held(), "[a! b c d!]"; got != want {
		t.Errorf("held are %s, want %s (! for the present version)", got, want)
	}
	since(s, &w.SetWatch, 1)
	if got, want := held(), "[a! b! c d!]"; got != want {
		t.Errorf("one later %s, want %s", got, want)
	}
	since(s, &w.SetWatch, -1)
	if got, want := held(), "[a! b! d! new!]"; got != want {
		t.Errorf("having read all %s, want %s", got, want)
	}
	s.Rewind(&w.SetWatch)
	if got, want := held(), "[a b d new]"; got != want {
		t.Errorf("after requesting all again %s, want %s", got, want)
	}
}

func TestSetsCountRedirects(t *testing.T) {
	c, s, _ := newWatchedSet(t)
	redirect := Change{Name: "r", Resource: NewResource(Spec{Name: "r", TypeURL: xdstype.Locator, Redirect: "xdstp://a/T/x"})}
	for _, step := range []struct {
		change Change
		want   bool
	}{{put("a", "x"), false}, {redirect, true}, {gone("a"), true}, {put("r", "x"), false}, {redirect, true}, {gone("r"), false}} {
		delta(c, step.change)
		if got := s.Redirects(); got != step.want {
			t.Errorf("after %s: redirects %v, want %v", step.change.Name, got, step.want)
		}
	}
}
