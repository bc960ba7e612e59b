package cache

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// toldWatcher counts what it is told.
type toldWatcher struct {
	Watch
	told int
}

func (w *toldWatcher) Changed() Waker {
	w.told++
	return nil
}

// Those who watch an entry are told of each change, in whichever way they watch, and
// nobody else is, whoever came and went before. Each finds its entry by its place.
func TestWatchersAreTold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 10})
		defer c.Close()
		names := []string{"a", "b"}
		watching := map[*toldWatcher]string{}
		var gone []*toldWatcher
		want := map[*toldWatcher]int{}
		updates := 0
		t.Repeat(map[string]func(*rapid.T){
			"watch": func(t *rapid.T) {
				w, name := &toldWatcher{}, rapid.SampledFrom(names).Draw(t, "name")
				if rapid.Bool().Draw(t, "joins") {
					w.Group = &WatchGroup{Changed: func(place *Watch) Waker {
						if place != &w.Watch {
							t.Fatalf("%p is told of %p", w, place)
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
					if w.told != want[w] {
						t.Fatalf("a watcher of %q was told %d times, want %d", name, w.told, want[w])
					}
				}
				for _, w := range gone {
					if w.told != want[w] || w.Entry() != nil {
						t.Fatalf("a watcher that has gone was told %d times, want %d", w.told, want[w])
					}
				}
			},
		})
	})
}

// Of a heartbeat all are told for whom it is a change, whoever came and went before; of any
// other change everybody is.
func TestHeartbeatsAreToldToThoseWhoKnowThem(t *testing.T) {
	c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 10})
	defer c.Close()
	k := Key{Scope: Scope{Authority: "a"}, TypeURL: "t", Name: "n"}
	put := func(content string) {
		r := NewResource(Spec{Name: k.Name, Version: content, TypeURL: k.TypeURL, Value: []byte(content), TTL: time.Minute})
		c.Apply(Update{Scope: k.Scope, TypeURL: k.TypeURL, Changes: []Change{{Name: k.Name, Resource: r}}})
	}
	var plain toldWatcher
	c.Watch(k, &plain)
	told := map[bool]int{} // by NoBeats
	join := func(noBeats bool) *Watch {
		w := &Watch{Group: &WatchGroup{IgnoreHeartbeats: noBeats, Changed: func(*Watch) Waker {
			told[noBeats]++
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
		clear(told)
		plain.told = 0
		put("one")
		if plain.told != 1 || told[false] != tt.know || told[true] != 0 {
			t.Errorf("%+v: of a heartbeat %d, %d and %d are told", tt, plain.told, told[false], told[true])
		}
		put("two")
		if plain.told != 2 || told[false] != 2*tt.know || told[true] != tt.do {
			t.Errorf("%+v: of a change %d, %d and %d are told", tt, plain.told, told[false], told[true])
		}
		for _, w := range places {
			c.Unwatch(w)
		}
	}
}
