package cache

import (
	"fmt"
	"maps"
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// liveBytes returns the size of the live heap while the result of make is kept.
func liveBytes(t *testing.T, make func() any) int {
	t.Helper()
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	made := make()
	after := heap()
	runtime.KeepAlive(made)
	return after - before
}

// A map that has had very many keys, and now has a few, needs the memory of the few.
func TestWhatHasShrunkGivesItsRoomBack(t *testing.T) {
	const many, few = 100_000, 10
	const most = 64 << 10
	for what, make := range map[string]func() any{
		"a map": func() any {
			m, had := map[int]int{}, Room(0)
			for i := range many {
				m[i] = i
			}
			for i := range many - few {
				m = Without(m, &had, i)
			}
			return m
		},
		"times to live": func() any {
			var e Expiries[*int]
			at := time.Now()
			var keys []*int
			for i := range many {
				keys = append(keys, new(i))
				e.Set(keys[i], at.Add(time.Duration(i)))
			}
			for _, key := range keys[few:] {
				e.End(key)
			}
			return &e
		},
		"times to live that have passed": func() any {
			var e Expiries[*int]
			at := time.Now()
			for i := range many {
				e.Set(new(i), at.Add(time.Duration(i)))
			}
			e.Due(at.Add(many - few))
			return &e
		},
		"who watches an entry": func() any {
			c := New(nothingFed{}, Options{Linger: time.Hour})
			defer c.Close()
			k := Key{TypeURL: "t", Name: "n"}
			audience := &WatchGroup{Changed: func(*Watch) Waker { return nil }}
			var all []*Watch
			for range many {
				w := &Watch{Group: audience}
				c.WatchInGroup(k, w)
				all = append(all, w)
			}
			for _, w := range all[few:] {
				c.Unwatch(w)
			}
			return append([]any{c}, all[0])
		},
		"the entries that linger": func() any {
			c := New(nothingFed{}, Options{Linger: time.Hour, IdleEntries: many})
			defer c.Close()
			audience := &WatchGroup{Changed: func(*Watch) Waker { return nil }}
			var topics []*topic
			for i := range many {
				w := &Watch{Group: audience}
				e, _ := c.WatchInGroup(Key{TypeURL: "t", Name: fmt.Sprint(i)}, w)
				c.Apply(Update{TypeURL: "t", Changes: []Change{{Name: fmt.Sprint(i), Resource: NewResource(Spec{Name: "n", Version: "1", TypeURL: "t"})}}})
				c.Unwatch(w)
				topics = append(topics, &e.topic)
			}
			for _, tp := range topics[few:] {
				since, _ := tp.idles()
				c.giveUp(tp, since)
			}
			return c
		},
		"the types": func() any {
			c := New(nothingFed{}, Options{Linger: time.Hour, IdleEntries: 1})
			defer c.Close()
			for i := range many {
				w := &Watch{Group: &WatchGroup{}}
				c.WatchInGroup(Key{Scope: Scope{Partition: fmt.Sprint(i)}, TypeURL: "t", Name: "n"}, w)
				c.Unwatch(w)
			}
			return c
		},
	} {
		t.Run(what, func(t *testing.T) {
			if got := liveBytes(t, make); got > most {
				t.Errorf("%d things of %d hold %d KiB, want %d at most", few, many, got>>10, most>>10)
			}
		})
	}
}

// nothingFed is a Source that feeds nothing.
type nothingFed struct{}

func (nothingFed) Start(Key)   {}
func (nothingFed) Refresh(Key) {}
func (nothingFed) Stop(Key)    {}

func TestWithoutIsDelete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		is, want, had := map[int]int{}, map[int]int{}, Room(0)
		for range rapid.IntRange(0, 20).Draw(t, "rounds") {
			from, n := rapid.IntRange(0, 1000).Draw(t, "from"), rapid.IntRange(0, 1000).Draw(t, "n")
			for i := from; i < from+n; i++ {
				if n%2 == 0 {
					is[i], want[i] = n, n
				} else {
					is = Without(is, &had, i)
					delete(want, i)
				}
			}
			if !maps.Equal(is, want) {
				t.Fatalf("%d keys, want %d", len(is), len(want))
			}
		}
	})
}
