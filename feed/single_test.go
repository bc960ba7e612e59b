package feed

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/internal/delivery"
)

// TestOnlyServerIsWatched holds when a scope with one server counts as unreachable.
func TestOnlyServerIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reach := NewReachability()
		var changes atomic.Int64
		reach.Notify(func(cache.Scope) { changes.Add(1) })
		var link *Link
		open := func(_ int, to *Link) Source {
			link = to
			return quietFeed{done: make(chan struct{})}
		}
		l := New(Options{
			Cache: cache.New(nil, cache.Options{}), Reachability: reach, Log: slog.New(slog.DiscardHandler), Guard: noGuard,
			Servers: Servers{Scope: someScope, Names: []string{"a"}, Open: open, Failover: failover.Options{Timeout: 15 * time.Second}},
		})
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
		link.Deliver(delivery.Event{Kind: delivery.Opened})
		expect("a stream that says nothing", true, 15*time.Second, 1)
		link.Deliver(delivery.Event{Kind: delivery.Responded})
		expect("an answer", false, 0, 2)
		time.Sleep(time.Hour)
		link.Deliver(delivery.Event{Kind: delivery.Lost})
		expect("a stream that ends", false, 0, 2)
		link.Deliver(delivery.Event{Kind: delivery.Opened})
		time.Sleep(time.Hour)
		expect("a new one, which has nothing new", false, 0, 2)
		link.Deliver(delivery.Event{Kind: delivery.Lost})
		time.Sleep(time.Second)
		link.Deliver(delivery.Event{Kind: delivery.Failed, Reason: "refused"})
		expect("no new one", true, time.Second, 3)
		if n := reach.Count()[someScope.Authority]; n != 1 {
			t.Errorf("%d scopes are counted", n)
		}
		l.Close()
		expect("nobody asks", false, 0, 4)
		link.Deliver(delivery.Event{Kind: delivery.Failed})
		time.Sleep(time.Hour)
		expect("late news", false, 0, 4)
	})
}
