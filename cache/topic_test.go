package cache

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// countingWatcher counts its notifications.
type countingWatcher struct {
	Watch
	notified int
}

func (w *countingWatcher) Changed() Waker {
	w.notified++
	return nil
}

// Exactly the current watchers of an entry are notified of each change, with or without a
// WatchGroup. Each watch refers to its entry.
func TestWatchersAreNotified(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 10})
		defer c.Close()
		names := []string{"a", "b"}
		watching := map[*countingWatcher]string{}
		var gone []*countingWatcher
		want := map[*countingWatcher]int{}
		updates := 0
		t.Repeat(map[string]func(*rapid.T){
			"watch": func(t *rapid.T) {
				w, name := &countingWatcher{}, rapid.SampledFrom(names).Draw(t, "name")
				if rapid.Bool().Draw(t, "joins") {
					w.Group = &WatchGroup{Changed: func(place *Watch) Waker {
						if place != &w.Watch {
							t.Fatalf("%p is notified of %p", w, place)
						}
						return w.Changed()
					}}
					c.WatchInGroup(testKey(name), &w.Watch)
				} else {
					c.Watch(testKey(name), w)
				}
				watching[w] = name
			},
			"unwatch": func(t *rapid.T) {
				for w := range watching {
					c.Unwatch(w)
					delete(watching, w)
					gone = append(gone, w)
					return
				}
			},
			"update": func(t *rapid.T) {
				updates++
				name := rapid.SampledFrom(names).Draw(t, "name")
				c.Apply(update(Change{Name: name, Resource: res(name, "", fmt.Sprint(updates))}))
				for w, of := range watching {
					if of == name {
						want[w]++
					}
				}
			},
			"": func(t *rapid.T) {
				for w, name := range watching {
					if e := w.Entry(); e == nil || e.Name() != name {
						t.Fatalf("a watcher of %q is at %v", name, e)
					}
					if w.notified != want[w] {
						t.Fatalf("a watcher of %q was notified %d times, want %d", name, w.notified, want[w])
					}
				}
				for _, w := range gone {
					if w.notified != want[w] || w.Entry() != nil {
						t.Fatalf("a watcher that has gone was notified %d times, want %d", w.notified, want[w])
					}
				}
			},
		})
	})
}

// Heartbeats notify exactly the current watchers that do not ignore heartbeats. Other changes notify
// all current watchers.
func TestHeartbeatsNotifyThoseWhoKnowThem(t *testing.T) {
	c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 10})
	defer c.Close()
	k := Key{Scope: Scope{Authority: "a"}, TypeURL: "t", Name: "n"}
	put := func(content string) {
		r := NewResource(Spec{Name: k.Name, Version: content, TypeURL: k.TypeURL, Value: []byte(content), TTL: time.Minute})
		c.Apply(Update{Scope: k.Scope, TypeURL: k.TypeURL, Changes: []Change{{Name: k.Name, Resource: r}}})
	}
	var plain countingWatcher
	c.Watch(k, &plain)
	notified := map[bool]int{} // by NoBeats
	join := func(noBeats bool) *Watch {
		w := &Watch{Group: &WatchGroup{IgnoreHeartbeats: noBeats, Changed: func(*Watch) Waker {
			notified[noBeats]++
			return nil
		}}}
		c.WatchInGroup(k, w)
		return w
	}
	for _, tt := range []struct{ know, do int }{{0, 3}, {2, 3}, {2, 0}, {0, 0}} {
		var places []*Watch
		for i := range 3 {
			c.Unwatch(join(i%2 == 0))
		}
		for range tt.know {
			places = append(places, join(false))
		}
		for range tt.do {
			places = append(places, join(true))
		}
		put("one")
		clear(notified)
		plain.notified = 0
		put("one")
		if plain.notified != 1 || notified[false] != tt.know || notified[true] != 0 {
			t.Errorf("%+v: of a heartbeat %d, %d and %d are notified", tt, plain.notified, notified[false], notified[true])
		}
		put("two")
		if plain.notified != 2 || notified[false] != 2*tt.know || notified[true] != tt.do {
			t.Errorf("%+v: of a change %d, %d and %d are notified", tt, plain.notified, notified[false], notified[true])
		}
		for _, w := range places {
			c.Unwatch(w)
		}
	}
}
