package cache

import (
	"fmt"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/internal/costs"
)

// Things of which clients and control planes can have any number: twice as many must cost twice
// the work, and not four times.

type workWatcher struct{ SetWatch }

func (*workWatcher) Changed() Waker { return nil }

type nameWatcher struct{ Watch }

func (*nameWatcher) Changed() Waker { return nil }

func (w *workWatcher) takeAll(s *Set) { s.Since(&w.SetWatch, func(Member) bool { return true }) }

// Topics that linger, more than there is room for.
func TestWorkOfIdleTopics(t *testing.T) {
	costs.Linear(t, 1000, func(t *testing.T, n int) {
		c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: n / 2})
		defer c.Close()
		for range 2 {
			for i := range n {
				w := &nameWatcher{}
				name := fmt.Sprint(i)
				c.Watch(testKey(name), w)
				c.Apply(Update{Scope: testScope, TypeURL: testType, Changes: []Change{{Name: name, Resource: res(name, "1", "x")}}})
				c.Unwatch(w)
			}
		}
		if got := c.Stats().Idle; got != n/2 {
			t.Errorf("%d topics linger, want %d", got, n/2)
		}
	})
}

// Full states of a wildcard, repeatedly with other members.
func TestWorkOfFullStates(t *testing.T) {
	costs.Linear(t, 8000, func(t *testing.T, n int) {
		c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 10})
		defer c.Close()
		w := &workWatcher{}
		s := c.WatchSet(testKey(Wildcard), w)
		for round := range 4 {
			u := SetUpdate{Extent: Whole}
			for i := range n {
				name := fmt.Sprint(i + round*n/2)
				u.Changes = append(u.Changes, Change{Name: name, Resource: res(name, fmt.Sprint(round), "x")})
			}
			c.Apply(setUpdate(u))
			w.takeAll(s)
		}
		if got := s.Len(); got != n {
			t.Errorf("%d members, want %d", got, n)
		}
	})
}

// Times to live that are renewed repeatedly.
func TestWorkOfExpiries(t *testing.T) {
	costs.Linear(t, 1000, func(t *testing.T, n int) {
		var e Expiries[int]
		now := time.Unix(0, 0)
		for round := range 8 {
			for i := range n { // back and forth, and twice the same
				e.Set(i, now.Add(time.Second))
				e.Set(i, now.Add(time.Duration(1+round%2)*time.Second))
			}
		}
		for i := range n {
			e.Set(i, now.Add(time.Second))
		}
		if got := len(e.Due(now.Add(time.Second))); got != n {
			t.Errorf("%d are due, want %d", got, n)
		}
	})
}
