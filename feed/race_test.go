package feed

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// noisyFeed is a server that answers, fails and comes back at random, as fast as it
// can, with locks as a stream has them.
type noisyFeed struct {
	child  *Link
	name   string
	stop   chan struct{}
	done   chan struct{}
	inbox  sync.Mutex
	wanted map[string]bool
	again  bool
	mu     sync.Mutex // held while it calls the child
}

func (f *noisyFeed) Start(k cache.Key) {
	f.inbox.Lock()
	defer f.inbox.Unlock()
	f.wanted[k.Name] = true
}

func (f *noisyFeed) Stop(k cache.Key) {
	f.inbox.Lock()
	defer f.inbox.Unlock()
	delete(f.wanted, k.Name)
}

func (f *noisyFeed) Resend() {
	f.inbox.Lock()
	defer f.inbox.Unlock()
	f.again = true
}

func (*noisyFeed) Resume(cache.Key)                 {}
func (*noisyFeed) Adopt(cache.Key)                  {}
func (*noisyFeed) Reject(_, _, _ string)            {}
func (*noisyFeed) PassOn(string, session.Rejection) {}
func (*noisyFeed) Statuses() []upstream.Status      { return nil }
func (f *noisyFeed) Refresh(cache.Key)              {}
func (f *noisyFeed) Drain()                         {}
func (f *noisyFeed) Close()                         { close(f.stop) }
func (f *noisyFeed) Done() <-chan struct{}          { return f.done }

func (f *noisyFeed) run() {
	defer close(f.done)
	for up := false; ; {
		select {
		case <-f.stop:
			return
		default:
		}
		f.mu.Lock()
		switch n := rand.IntN(20); {
		case n == 0 && up:
			f.child.Deliver(delivery.Event{Kind: delivery.Lost})
			up = false
		case n < 3 && !up:
			f.child.Deliver(delivery.Event{Kind: delivery.Failed, Reason: "refused"})
		case n < 6 && !up:
			f.child.Deliver(delivery.Event{Kind: delivery.Responded})
			up = true
		case up:
			f.say()
		}
		f.mu.Unlock()
	}
}

func (f *noisyFeed) say() {
	u := cache.Update{Scope: someScope, TypeURL: someType}
	f.inbox.Lock()
	for name := range f.wanted {
		u.Changes = append(u.Changes, cache.Change{Name: name, Resource: resourceOf(name, f.name)})
	}
	f.inbox.Unlock()
	f.child.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: []cache.Update{u}}})
}

func resourceOf(name, version string) *cache.Resource {
	return cache.NewResource(cache.Spec{Name: name, Version: version, TypeURL: someType, Value: []byte(version)})
}

// onlyActive is a sink that checks which server an update is from.
type onlyActive struct {
	*cache.Cache
	check func(cache.Update)
}

func (s *onlyActive) Apply(updates ...cache.Update) {
	s.check(updates[0])
	s.Cache.Apply(updates...)
}

// TestOnlyTheActiveServerIsApplied checks that the sink gets the updates of one server at a
// time, with any concurrent calls of all servers, under the locks that feeds and the cache hold.
func TestOnlyTheActiveServerIsApplied(t *testing.T) {
	source := &lateSource{}
	c := cache.New(source, cache.Options{Linger: time.Nanosecond, IdleEntries: 1})
	defer c.Close()
	var g *Feed
	const enough = 2000
	var updates atomic.Int64
	sink := &onlyActive{Cache: c, check: func(u cache.Update) { // with Feed.mu held
		if len(u.Changes) == 0 || u.Changes[0].Resource == nil {
			return
		}
		updates.Add(1)
		if said, active := u.Changes[0].Resource.Version(), g.machine.Active(); said != fmt.Sprint(active) {
			t.Errorf("an update of server %s was applied, and %d is active", said, active)
		}
	}}
	open := func(i int, child *Link) Source {
		f := &noisyFeed{child: child, name: fmt.Sprint(i), stop: make(chan struct{}), done: make(chan struct{}), wanted: map[string]bool{}}
		go f.run()
		return f
	}
	o := failover.Options{Timeout: time.Millisecond, Hysteresis: time.Millisecond, Grace: time.Millisecond, Unreachable: true}
	g = New(Options{
		Cache: sink, Reachability: NewReachability(), Log: slog.New(slog.DiscardHandler), Guard: noGuard,
		Servers: Servers{Scope: someScope, Names: []string{"0", "1", "2"}, Open: open, Failover: o},
	})
	source.Feed = g
	var clients sync.WaitGroup
	for n := range 4 {
		clients.Go(func() {
			for updates.Load() < enough {
				w := &nameWatch{}
				c.Watch(cache.Key{Scope: someScope, TypeURL: someType, Name: fmt.Sprint(n, rand.IntN(5))}, w)
				g.Sources()
				c.Unwatch(w)
			}
		})
	}
	clients.Wait()
	g.Drain()
	g.Close()
}
