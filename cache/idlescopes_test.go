package cache

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func lingeringScopes(t *testing.T, idleScopes int, test func(t *testing.T, c *Cache, f *feeds)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFeeds()
		c := New(f, Options{Linger: testLinger, IdleEntries: 1000, IdleScopes: idleScopes})
		defer c.Close()
		test(t, c, f)
	})
}

func inScope(scope, name string) Key {
	return Key{Scope: Scope{Authority: scope}, TypeURL: testType, Name: name}
}

// watchAll watches entries, and unwatches them when the result is called.
func watchAll(c *Cache, keys ...Key) (leave func()) {
	var watchers []Watcher
	for _, k := range keys {
		w := &counter{}
		c.Watch(k, w)
		watchers = append(watchers, w)
	}
	return func() {
		for _, w := range watchers {
			c.Unwatch(w)
		}
	}
}

// Excess scopes are given up at once, and not after their linger time.
func TestFewScopesLingerAndTheOldestGoFirst(t *testing.T) {
	lingeringScopes(t, 2, func(t *testing.T, c *Cache, f *feeds) {
		for _, scope := range []string{"a", "b", "c"} {
			watchAll(c, inScope(scope, "x"), inScope(scope, "y"))()
		}
		for scope, stops := range map[string]int{"a": 1, "b": 0, "c": 0} {
			f.expect(t, "three have been left", inScope(scope, "x"), 1, stops)
			f.expect(t, "three have been left", inScope(scope, "y"), 1, stops)
		}
		// One that is used again is the newest when it is left again.
		watchAll(c, inScope("b", "x"))()
		watchAll(c, inScope("d", "x"))()
		f.expect(t, "b was used again", inScope("b", "x"), 1, 0)
		f.expect(t, "b was used again", inScope("c", "x"), 1, 1)
	})
}

func TestAScopeThatIsUsedIsNotGivenUp(t *testing.T) {
	lingeringScopes(t, 1, func(t *testing.T, c *Cache, f *feeds) {
		leave := watchAll(c, inScope("used", "x"))
		watchAll(c, inScope("used", "y"))()
		for i := range 10 {
			watchAll(c, inScope(fmt.Sprint(i), "x"))()
		}
		f.expect(t, "another topic of the scope is watched", inScope("used", "y"), 1, 0)
		leave()
		f.expect(t, "the newest that was left", inScope("used", "x"), 1, 0)
		f.expect(t, "the newest that was left", inScope("9", "x"), 1, 1)
		<-time.After(testLinger)
		f.expect(t, "after the linger time", inScope("used", "x"), 1, 1)
		if n := len(c.idle.groups.all); n != 0 {
			t.Errorf("%d scopes are still counted", n)
		}
	})
}

// The alternatives of a name are in other authorities, whose scopes it keeps in use.
func TestANameWithAnAlternativeLingersLikeAScope(t *testing.T) {
	lingeringScopes(t, 2, func(t *testing.T, c *Cache, f *feeds) {
		alt := func(i int) Key {
			return Key{Scope: Scope{Authority: "a", Derived: Resolved}, TypeURL: testType, Name: fmt.Sprintf("xdstp://a/T/x#alt=xdstp://b%d/T/x", i)}
		}
		plain := Key{Scope: Scope{Authority: "a", Derived: Resolved}, TypeURL: testType, Name: "xdstp://a/T/x"}
		leave := watchAll(c, plain)
		defer leave()
		for i := range 4 {
			watchAll(c, alt(i))()
		}
		for i := range 4 {
			want := 0
			if i < 2 {
				want = 1
			}
			f.expect(t, "the oldest have gone", alt(i), 1, want)
		}
		f.expect(t, "still watched", plain, 1, 0)
	})
}

// The work for scopes that come and go is proportional to their number.
func TestScopesThatComeAndGoCostWhatTheyAre(t *testing.T) {
	work := func(scopes int) int {
		c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 10 * scopes, IdleScopes: 100})
		defer c.Close()
		var all []func()
		for i := range scopes {
			all = append(all, watchAll(c, inScope(fmt.Sprint(i), "x"), inScope(fmt.Sprint(i), "y")))
		}
		for _, leave := range all {
			leave()
		}
		if n := c.idle.groups.idle.len(); n != 100 {
			t.Errorf("of %d scopes %d linger, want 100", scopes, n)
		}
		return c.idle.groups.steps
	}
	n, double := work(1000), work(2000)
	if float64(double) > 2.2*float64(n) {
		t.Errorf("%d steps for 1000 scopes, %d for 2000", n, double)
	}
}

// The counts are right when topics come and go concurrently.
func TestScopesAreCountedRightUnderConcurrency(t *testing.T) {
	const limit = 3
	c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 10, IdleScopes: limit})
	defer c.Close()
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			for range 2000 {
				watchAll(c, inScope(fmt.Sprint(r.IntN(6)), fmt.Sprint(r.IntN(3))), inScope(fmt.Sprint(r.IntN(6)), fmt.Sprint(r.IntN(3))))()
			}
		})
	}
	wg.Wait()
	there := map[idleGroup]int{}
	for scope, topics := range c.scopes {
		for _, table := range topics.tables {
			there[idleGroup{Scope: scope}] += len(table.entries)
		}
	}
	if len(there) > limit || len(there) != len(c.idle.groups.all) || len(there) != c.idle.groups.idle.len() {
		t.Errorf("%d scopes have topics, %d are known, %d linger, at most %d may", len(there), len(c.idle.groups.all), c.idle.groups.idle.len(), limit)
	}
	for key, n := range there {
		if g := c.idle.groups.all[key]; g.topics != n || len(g.idle) != n {
			t.Errorf("%s has %d topics; counted are %d, and of them %d that linger", key.Scope, n, g.topics, len(g.idle))
		}
	}
}

// If no stream can be opened for a scope, the scope is given up that has been idle the longest among
// those that would free a stream. No scope in use is given up.
func TestTheOldestIdleScopeThatMatchesIsGivenUp(t *testing.T) {
	lingeringScopes(t, 100, func(t *testing.T, c *Cache, f *feeds) {
		leave := watchAll(c, inScope("used", "x"))
		defer leave()
		watchAll(c, inScope("used", "y"))()
		alternative := Key{Scope: Scope{Authority: "z", Derived: Resolved}, TypeURL: testType, Name: "xdstp://z/T/x#alt=xdstp://a/T/x"}
		watchAll(c, alternative)()
		for _, scope := range []string{"other", "a", "b"} {
			watchAll(c, inScope(scope, "x"), inScope(scope, "y"))()
		}
		match := func(s Scope) bool { return s.Authority == "a" || s.Authority == "b" || s.Authority == "used" }
		for _, k := range []Key{inScope("a", "x"), inScope("b", "x"), alternative} {
			f.expect(t, "before its turn", k, 1, 0)
			if !c.GiveUpIdle(match) {
				t.Errorf("nothing is given up in the turn of %v", k)
			}
			f.expect(t, "after its turn", k, 1, 1)
		}
		f.expect(t, "with the scope's other topic", inScope("a", "y"), 1, 1)
		if c.GiveUpIdle(match) {
			t.Error("something is given up although nothing is left that matches")
		}
		f.expect(t, "another topic of the scope is watched", inScope("used", "y"), 1, 0)
		f.expect(t, "it does not match", inScope("other", "x"), 1, 0)
	})
}
