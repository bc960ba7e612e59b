package feed

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/internal/delivery"
)

// appliedCache records what it has got.
type appliedCache struct {
	*cache.Cache
	applied []cache.Update
}

func (c *appliedCache) Apply(updates ...cache.Update) { c.applied = append(c.applied, updates...) }

// TestAnOutageOfAServerThatIsReplacedIsNone: if another source takes the place of a server that has failed, clients do not
// learn of it.
func TestAnOutageOfAServerThatIsReplacedIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reach := NewReachability()
		c := &appliedCache{Cache: cache.New(nil, cache.Options{})}
		defer c.Close()
		var link *Link
		var reasons []string
		l := New(Options{
			Cache: c, Reachability: reach, Log: slog.New(slog.DiscardHandler), Guard: noGuard,
			Servers: Servers{
				Scope: someScope, Names: []string{"a"}, Failover: failover.Options{Timeout: 15 * time.Second},
				Open: func(_ int, to *Link) Source {
					link = to
					return quietFeed{done: make(chan struct{})}
				},
				Failed: func(reason string) { reasons = append(reasons, reason) },
			},
		})
		defer l.Close()
		report := func(cause delivery.Cause, code codes.Code) {
			link.Deliver(delivery.Event{Delivery: delivery.Delivery{Cause: cause, Types: []cache.Update{{
				Scope: someScope, TypeURL: someType, Changes: []cache.Change{{Name: "x", Err: &cache.Error{Code: code}}},
			}}}})
		}
		link.Deliver(delivery.Event{Kind: delivery.Failed, Reason: "refused"})
		report(delivery.Outage, codes.Unavailable)
		time.Sleep(time.Minute)
		if _, down := reach.Unreachable(someScope); down {
			t.Error("the scope is unreachable")
		}
		if len(c.applied) > 0 {
			t.Errorf("the cache has got %v", c.applied)
		}
		if len(reasons) != 1 || reasons[0] != "refused" {
			t.Errorf("Failed was called with %q, want once, with the reason", reasons)
		}
		report(delivery.Response, codes.Internal)
		if len(c.applied) != 1 {
			t.Errorf("the cache has got %v, want the server's error", c.applied)
		}
	})
}
