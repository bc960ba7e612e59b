package failover

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// TestOnlyServerIsWatched holds when a scope with one server counts as unreachable.
func TestOnlyServerIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reach := NewReachability()
		var changes atomic.Int64
		reach.Notify(func(cache.Scope) { changes.Add(1) })
		l := NewSingle(someScope, "a", Options{Timeout: 15 * time.Second}, reach)
		expect := func(what string, down bool, span time.Duration, n int64) {
			t.Helper()
			synctest.Wait()
			since, is := reach.Unreachable(someScope)
			if is != down || is && time.Since(since) != span {
				t.Errorf("%s: unreachable %v for %v, want %v for %v", what, is, time.Since(since), down, span)
			}
			if got := changes.Load(); got != n {
				t.Errorf("%s: %d notifications, want %d", what, got, n)
			}
		}
		expect("in the beginning", false, 0, 0)
		time.Sleep(15 * time.Second)
		expect("no answer", true, 15*time.Second, 1)
		l.Event(Event{Kind: Opened})
		expect("a stream that says nothing", true, 15*time.Second, 1)
		l.Event(Event{Kind: Responded})
		expect("an answer", false, 0, 2)
		time.Sleep(time.Hour)
		l.Event(Event{Kind: Lost})
		expect("a stream that ends", false, 0, 2)
		l.Event(Event{Kind: Opened})
		time.Sleep(time.Hour)
		expect("a new one, which has nothing new", false, 0, 2)
		l.Event(Event{Kind: Lost})
		time.Sleep(time.Second)
		l.Event(Event{Kind: Failed, Reason: "refused"})
		expect("no new one", true, time.Second, 3)
		if n := reach.Count()[someScope.Authority]; n != 1 {
			t.Errorf("%d scopes are counted", n)
		}
		l.Close()
		expect("nobody asks", false, 0, 4)
		l.Event(Event{Kind: Failed})
		time.Sleep(time.Hour)
		expect("late news", false, 0, 4)
	})
}
