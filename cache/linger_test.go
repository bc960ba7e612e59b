package cache

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

const testLinger = time.Minute

// lingering runs test with a cache in a bubble, whose time is the test's own.
func lingering(t *testing.T, idleEntries int, test func(t *testing.T, c *Cache, f *feeds)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFeeds()
		c := New(f, Options{Linger: testLinger, IdleEntries: idleEntries})
		defer c.Close()
		test(t, c, f)
	})
}

// answer stores that a name has no resource. Only what was answered lingers.
func answer(c *Cache, name string) { c.Apply(update(Change{Name: name})) }

func (f *feeds) expect(t *testing.T, when string, k Key, starts, stops int) {
	t.Helper()
	synctest.Wait()
	if gotStarts, gotStops := f.counts(t, k); gotStarts != starts || gotStops != stops {
		t.Errorf("%s: started %d times and stopped %d times, want %d and %d", when, gotStarts, gotStops, starts, stops)
	}
}

// Invariant: one subscription upstream per key, however many ask.
func TestTopicIsFedOnceHoweverManyWatch(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		k, ks := testKey("foo"), testKey(Wildcard)
		var watchers []Watcher
		for range 100 {
			w, sw := &counter{}, &setCounter{}
			c.Watch(k, w)
			c.WatchSet(ks, sw)
			watchers = append(watchers, w, sw)
		}
		answer(c, "foo")
		f.expect(t, "watched", k, 1, 0)
		f.expect(t, "set watched", ks, 1, 0)
		for _, w := range watchers[2:] {
			c.Unwatch(w)
		}
		<-time.After(3 * testLinger)
		f.expect(t, "one is left", k, 1, 0)
		f.expect(t, "one is left at the set", ks, 1, 0)
		c.Unwatch(watchers[0])
		c.Unwatch(watchers[1])
		<-time.After(testLinger - 1)
		f.expect(t, "just before the linger time is over", k, 1, 0)
		f.expect(t, "just before the linger time is over, the set", ks, 1, 0)
		<-time.After(1)
		f.expect(t, "after the linger time", k, 1, 1)
		f.expect(t, "after the linger time, the set", ks, 1, 1)
		if len(c.scopes) > 0 {
			t.Errorf("%d scopes are left", len(c.scopes))
		}
	})
}

func TestLingeringTopicIsKeptFresh(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		w := &counter{}
		c.Watch(testKey("foo"), w)
		answer(c, "foo")
		c.Unwatch(w)
		<-time.After(testLinger / 2)
		c.Apply(update(Change{Name: "foo", Resource: res("foo", "1", "x")}))
		if got := entryOf(c.Watch(testKey("foo"), w)).State(); got.Status != Present {
			t.Errorf("the state is %v", got.Status)
		}
		<-time.After(2 * testLinger)
		f.expect(t, "watched again", testKey("foo"), 1, 0)
	})
}

func TestInterestDuringLingerRestartsTheLingerTime(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		w, k := &counter{}, testKey("foo")
		for range 5 {
			c.Watch(k, w)
			answer(c, "foo")
			c.Unwatch(w)
			<-time.After(testLinger - 1)
		}
		f.expect(t, "watched every now and then", k, 1, 0)
		<-time.After(1)
		f.expect(t, "after the linger time", k, 1, 1)
		c.Watch(k, w)
		f.expect(t, "watched again", k, 2, 1)
		if got := entryOf(c.Watch(k, &counter{})).State().Status; got != Requested {
			t.Errorf("the state of an entry that was given up is %v", got)
		}
	})
}

func TestLongestIdleIsGivenUpFirst(t *testing.T) {
	const limit = 3
	lingering(t, limit, func(t *testing.T, c *Cache, f *feeds) {
		ws := make([]*counter, 6)
		for i := range ws {
			ws[i] = &counter{}
			c.Watch(testKey(fmt.Sprint(i)), ws[i])
		}
		for _, i := range []int{4, 0, 2} {
			c.Unwatch(ws[i])
			<-time.After(1)
		}
		if len(f.stopped) > 0 {
			t.Fatalf("stopped %v within the limit", f.stopped)
		}
		c.Watch(testKey("0"), ws[0]) // not idle any more
		c.Unwatch(ws[1])
		if len(f.stopped) > 0 {
			t.Fatalf("stopped %v within the limit", f.stopped)
		}
		c.Unwatch(ws[3])
		c.Unwatch(ws[0])
		if want := []Key{testKey("4"), testKey("2")}; !slices.Equal(f.stopped, want) {
			t.Errorf("stopped %v, want %v", f.stopped, want)
		}
	})
}

func TestClosedCacheGivesNothingUp(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		a, b := &counter{}, &counter{}
		c.Watch(testKey("a"), a)
		c.Watch(testKey("b"), b)
		c.Unwatch(a)
		c.Close()
		c.Unwatch(b)
		for i := range 20 {
			w := &counter{}
			c.Watch(testKey(fmt.Sprint(i)), w)
			c.Unwatch(w)
		}
		<-time.After(2 * testLinger)
		f.expect(t, "closed", testKey("a"), 1, 0)
		f.expect(t, "unwatched when closed", testKey("b"), 1, 0)
	})
}

func TestEachTopicLingersForItsOwnTime(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		a, b := &counter{}, &counter{}
		c.Watch(testKey("a"), a)
		c.Watch(testKey("b"), b)
		answer(c, "a")
		answer(c, "b")
		c.Unwatch(a)
		<-time.After(1)
		c.Unwatch(b)
		<-time.After(testLinger - 1)
		f.expect(t, "the first", testKey("a"), 1, 1)
		f.expect(t, "the second, not yet", testKey("b"), 1, 0)
		<-time.After(1)
		f.expect(t, "the second", testKey("b"), 1, 1)
	})
}

// Choosing a topic to give up and giving it up are two steps. A watcher may come between
// them.
func TestTopicThatIsWatchedAgainIsNotGivenUp(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		w, k := &counter{}, testKey("foo")
		c.Watch(k, w)
		tp, left := w.topic, time.Now()
		c.Unwatch(w)
		c.Watch(k, w)
		c.giveUp(tp, left)
		f.expect(t, "watched again", k, 1, 0)
		<-time.After(1)
		c.Unwatch(w)
		c.giveUp(tp, left)
		f.expect(t, "idle again", k, 1, 0)
	})
}

// The last watcher's leaving and the recording of it are two steps. Between them another
// watcher may come and leave, and be recorded first.
func TestLastWatchersThatLeaveInTurnAreAllNoted(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		k, slow, quick := testKey("foo"), &counter{}, &counter{}
		c.Watch(k, slow)
		tp, left := slow.topic, time.Now()
		if !tp.remove(&slow.Watch, left) {
			t.Fatal("not the last")
		}
		<-time.After(1)
		c.Watch(k, quick)
		c.Unwatch(quick)
		c.idle.add(tp, left, true, true)
		<-time.After(3 * testLinger)
		f.expect(t, "after the linger time", k, 1, 1)
	})
}

// A model of interest and linger: a topic is fed while it is watched, or has been idle for less
// than the linger time, or a short time if it has no answer, unless too many were idle.
func TestWhatIsFedFollowsInterest(t *testing.T) {
	type step struct {
		name  string
		leave bool
		// answered: the name has an answer after the step, if it is fed.
		answered bool
		quiet    int // quarters of the linger time
	}
	names := []string{"a", "b", "c", "d", "e", "f"}
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			name:     rapid.SampledFrom(names).Draw(t, "name"),
			leave:    rapid.Bool().Draw(t, "leave"),
			answered: rapid.Bool().Draw(t, "answered"),
			quiet:    max(0, rapid.IntRange(-6, 5).Draw(t, "quiet")),
		}
	}), 1, 60)
	rapid.Check(t, func(rt *rapid.T) {
		const limit = 3
		var wrong string
		row := steps.Draw(rt, "steps")
		lingering(t, limit, func(_ *testing.T, c *Cache, f *feeds) {
			watchers := map[string][]*counter{}
			var idle []string // longest first
			since, answered := map[string]time.Time{}, map[string]bool{}
			for i, s := range row {
				if ws := watchers[s.name]; s.leave && len(ws) > 0 {
					c.Unwatch(ws[0])
					watchers[s.name] = ws[1:]
					if len(ws) == 1 {
						idle, since[s.name] = append(idle, s.name), time.Now()
						idle = idle[max(0, len(idle)-limit):]
					}
				} else {
					w := &counter{}
					c.Watch(testKey(s.name), w)
					watchers[s.name] = append(ws, w)
					idle = slices.DeleteFunc(idle, func(n string) bool { return n == s.name })
				}
				fed := func(n string) bool { return len(watchers[n]) > 0 || slices.Contains(idle, n) }
				if s.answered {
					answer(c, s.name)
					answered[s.name] = fed(s.name)
				}
				<-time.After(time.Duration(s.quiet) * testLinger / 4)
				synctest.Wait()
				idle = slices.DeleteFunc(idle, func(n string) bool {
					return time.Since(since[n]) >= testLinger || !answered[n] && time.Since(since[n]) >= unansweredLinger
				})
				f.mu.Lock()
				for _, n := range names {
					want := fed(n)
					answered[n] = answered[n] && want
					if got := f.running[testKey(n)]; got != want || f.broken != "" {
						wrong = fmt.Sprintf("after step %d: %s: fed is %v, want %v %s", i, n, got, want, f.broken)
					}
				}
				f.mu.Unlock()
				if wrong != "" {
					return
				}
			}
		})
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// Making a copy of a set again needs no request upstream, and clients can cause any number of
// copies: only few of them linger.
func TestFewCopiesOfSetsLinger(t *testing.T) {
	lingering(t, 1000, func(t *testing.T, c *Cache, f *feeds) {
		glob := func(i int) Key {
			k := Key{Scope: Scope{Authority: "a", Derived: Resolved}, TypeURL: testType, Name: fmt.Sprintf("xdstp://a/T/x/*#alt=xdstp://b/T/%d/*", i)}
			if i == 0 {
				k.Name = "xdstp://a/T/x/*" // with redirects
			}
			return k
		}
		const many = maxIdleCopies + 10
		for i := range many {
			w := &setCounter{}
			c.WatchSet(glob(i), w)
			c.Unwatch(w)
		}
		for i := range many {
			want := 0
			if i > 0 && i < many-maxIdleCopies {
				want = 1
			}
			f.expect(t, glob(i).Name, glob(i), 1, want)
		}
		// One that is watched again is not idle, nor given up as such.
		w := &setCounter{}
		c.WatchSet(glob(many-maxIdleCopies), w)
		v := &setCounter{}
		c.WatchSet(glob(many), v)
		c.Unwatch(v)
		f.expect(t, "watched again", glob(many-maxIdleCopies), 1, 0)
		<-time.After(testLinger)
		f.expect(t, "after the linger time", glob(many-1), 1, 1)
		f.expect(t, "still watched", glob(many-maxIdleCopies), 1, 0)
		if n := c.idle.copies.len(); n != 0 {
			t.Errorf("%d copies are still counted", n)
		}
		c.Unwatch(w)
	})
}
