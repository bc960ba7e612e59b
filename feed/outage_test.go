package feed

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// quietFeed does nothing: the test reports the events of its server.
type quietFeed struct{ done chan struct{} }

func (quietFeed) Start(cache.Key)                  {}
func (quietFeed) Stop(cache.Key)                   {}
func (quietFeed) Refresh(cache.Key)                {}
func (quietFeed) Resend()                          {}
func (quietFeed) Resume(cache.Key)                 {}
func (quietFeed) Adopt(cache.Key)                  {}
func (quietFeed) Reject(_, _, _ string)            {}
func (quietFeed) PassOn(string, session.Rejection) {}
func (quietFeed) Statuses() []upstream.Status      { return nil }
func (quietFeed) Drain()                           {}
func (f quietFeed) Close()                         { close(f.done) }
func (f quietFeed) Done() <-chan struct{}          { return f.done }

// An authority cannot be reached when all of its servers have failed. A server that is only
// slow may still answer: clients that fall back to a server of their own would leave
// too early.
func TestAnOutageIsOfAllServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		children := map[int]*Link{}
		source := &lateSource{}
		c := cache.New(source, cache.Options{Linger: time.Hour, IdleEntries: 10})
		defer c.Close()
		open := func(i int, child *Link) Source {
			children[i] = child
			return quietFeed{done: make(chan struct{})}
		}
		g := New(Options{
			Cache: c, Reachability: NewReachability(), Log: slog.New(slog.DiscardHandler), Guard: noGuard,
			Servers: Servers{Scope: someScope, Names: []string{"one", "two"}, Open: open, Failover: failover.Options{Timeout: 10 * time.Second, Hysteresis: time.Second}},
		})
		defer g.Close()
		source.Feed = g
		var w nameWatch
		entry, _ := c.Watch(cache.Key{Scope: someScope, TypeURL: someType, Name: "a"}, &w)
		expect := func(when string, failed, unreachable bool) {
			t.Helper()
			synctest.Wait()
			st := entry.State()
			if got := st.Status == cache.Failed; got != failed || st.Unreachable() != unreachable {
				t.Errorf("%s: the name is %s, unreachable %t; want failed %t, unreachable %t", when, st.Status, st.Unreachable(), failed, unreachable)
			}
		}
		synctest.Wait()

		children[0].Deliver(delivery.Event{Kind: delivery.Failed, Reason: "refused"})
		expect("one has failed", false, false)
		time.Sleep(10 * time.Second)
		expect("two is slow", true, false)
		children[1].Deliver(delivery.Event{Kind: delivery.Failed, Reason: "refused"})
		expect("two has failed", true, true)
		children[0].Deliver(delivery.Event{Kind: delivery.Opened})
		expect("one accepts a stream", true, true)
		children[0].Deliver(delivery.Event{Kind: delivery.Responded})
		expect("one has answered", true, false)
	})
}
