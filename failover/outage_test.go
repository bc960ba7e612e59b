package failover

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// quietFeed does nothing: the test reports the events of its server.
type quietFeed struct {
	cache.Source
	done chan struct{}
}

func (quietFeed) Start(cache.Key)         {}
func (quietFeed) Stop(cache.Key)          {}
func (quietFeed) Refresh(cache.Key)       {}
func (quietFeed) Resend()                 {}
func (quietFeed) Drain()                  {}
func (f quietFeed) Close()                { close(f.done) }
func (f quietFeed) Done() <-chan struct{} { return f.done }

// An authority cannot be reached when all of its servers have failed. A server that is only
// slow may still answer: clients that fall back to a server of their own would leave
// too early.
func TestAnOutageIsOfAllServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		children := map[int]*Child{}
		source := &lateSource{}
		c := cache.New(source, cache.Options{Linger: time.Hour, IdleEntries: 10})
		defer c.Close()
		g := NewGroup(someScope, []string{"one", "two"}, func(i int, child *Child) ServerSource {
			children[i] = child
			return quietFeed{done: make(chan struct{})}
		}, Options{Timeout: 10 * time.Second, Hysteresis: time.Second}, c, NewReachability(), slog.New(slog.DiscardHandler))
		defer g.Close()
		source.Source = g
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

		children[0].Event(Event{Kind: Failed, Reason: "refused"})
		expect("one has failed", false, false)
		time.Sleep(10 * time.Second)
		expect("two is slow", true, false)
		children[1].Event(Event{Kind: Failed, Reason: "refused"})
		expect("two has failed", true, true)
		children[0].Event(Event{Kind: Opened})
		expect("one accepts a stream", true, true)
		children[0].Event(Event{Kind: Responded})
		expect("one has answered", true, false)
	})
}
