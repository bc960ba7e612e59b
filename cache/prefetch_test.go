package cache

import (
	"testing"

	"google.golang.org/grpc/codes"
)

// prefetcher is a Prefetcher that counts its calls.
type prefetcher struct {
	PrefetchWatch
	notified, adopted int
}

func (p *prefetcher) Changed() Waker { p.notified++; return nil }

func (p *prefetcher) Adopted() { p.adopted++ }

// adoptingFeeds counts the topics that were adopted.
type adoptingFeeds struct {
	*feeds
	adopted map[Key]int
}

func (f *adoptingFeeds) Adopt(k Key) { f.adopted[k]++ }

func TestTheFirstClientAdoptsWhatWasPrefetched(t *testing.T) {
	silent := &Error{Code: codes.DeadlineExceeded, Message: "no answer", Unanswered: true}
	slow := &Error{Code: codes.DeadlineExceeded, Message: "no answer"}
	away := &Error{Code: codes.Unavailable, Message: "away"}
	tests := map[string]struct {
		change *Change // before the client comes
		want   Status  // that the client sees
		adopts bool    // the source is to wait for an answer once more
	}{
		"no answer yet":     {nil, Requested, true},
		"silent":            {&Change{Name: "foo", Err: silent}, Requested, true},
		"no answer in time": {&Change{Name: "foo", Err: slow}, Requested, true},
		"unreachable":       {&Change{Name: "foo", Err: away}, Failed, false},
		"absent":            {&Change{Name: "foo"}, Absent, true},
		"there":             {&Change{Name: "foo", Resource: NewResource(Spec{Name: "foo", Version: "1", TypeURL: testType, Value: []byte("1")})}, Present, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := &adoptingFeeds{newFeeds(), map[Key]int{}}
			c := New(f, Options{Linger: testLinger})
			defer c.Close()
			k, p, other, client := testKey("foo"), &prefetcher{}, &prefetcher{}, &counter{}
			if _, alone := c.Prefetch(k, p); !alone {
				t.Error("the first who watches is not alone")
			}
			if _, alone := c.Prefetch(k, other); !alone {
				t.Error("a second prefetcher counts as a client")
			}
			if test.change != nil {
				c.Apply(Update{Scope: k.Scope, TypeURL: k.TypeURL, Changes: []Change{*test.change}})
			}
			e, _ := c.Watch(k, client)
			if got := e.State().Status; got != test.want {
				t.Errorf("the client sees %v, want %v", got, test.want)
			}
			var states StateCounts
			if c.EachStates(func(_ Scope, _ string, n *StateCounts) { states = *n }); states[e.Snapshot().cacheState()] != 1 {
				t.Errorf("counted as %v", states)
			}
			if p.adopted != 1 || other.adopted != 1 {
				t.Errorf("adopted %d and %d times, want once each", p.adopted, other.adopted)
			}
			if got := f.adopted[k] > 0; got != test.adopts {
				t.Errorf("the source adopts: %v, want %v", got, test.adopts)
			}
			later := &counter{}
			again := 0 // what is absent is requested once more for each client
			if test.want == Absent {
				again = f.adopted[k]
			}
			if c.Watch(k, later); p.adopted != 1 || f.adopted[k] > 1+again {
				t.Error("a second client adopts it again")
			}
			if _, alone := c.Prefetch(k, &prefetcher{}); alone {
				t.Error("alone among clients")
			}
		})
	}
}

// An entry that a client has watched does not count as prefetched until nobody watches it.
func TestWhatClientsWatchIsNotPrefetched(t *testing.T) {
	f := &adoptingFeeds{newFeeds(), map[Key]int{}}
	c := New(f, Options{Linger: testLinger})
	defer c.Close()
	k, p, client := testKey("foo"), &prefetcher{}, &counter{}
	c.Watch(k, client)
	if _, alone := c.Prefetch(k, p); alone {
		t.Error("alone although a client watches")
	}
	c.Unwatch(client)
	c.Watch(k, &counter{})
	if p.adopted != 0 {
		t.Error("a client adopts what another one has requested")
	}
	idle := testKey("bar")
	c.Watch(idle, client)
	c.Unwatch(client)
	if _, alone := c.Prefetch(idle, &prefetcher{}); !alone {
		t.Error("not alone, though the client has left")
	}
}
