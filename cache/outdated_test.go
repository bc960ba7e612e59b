package cache

import (
	"testing"
	"time"
)

// renewedWatcher counts its notifications.
type renewedWatcher struct {
	SetWatch
	n int
}

func (w *renewedWatcher) Changed() Waker {
	w.n++
	return nil
}

// When topics stop being outdated, and that their watchers are then notified even if nothing has changed.
func TestOutdatedTopics(t *testing.T) {
	scope := Scope{Authority: "a"}
	answer := func(r *Resource, err *Error) func(*Cache) {
		return func(c *Cache) {
			c.Apply(Update{
				Scope: scope, TypeURL: "T", Changes: []Change{{Name: "foo", Resource: r, Err: err}},
				Sets: []SetUpdate{{Name: Wildcard, Extent: WholeIf(err == nil), Err: err, Changes: []Change{{Name: "foo", Resource: r}}}},
			})
		}
	}
	there := res("foo", "1", "x")
	type state struct {
		entry, set bool
		notified   int // of the entry and the set
	}
	for _, tt := range []struct {
		name string
		then func(*Cache)
		want state
	}{
		{"nothing", func(*Cache) {}, state{true, true, 0}},
		{"the same answer", answer(there, nil), state{false, false, 2}},
		{"another answer", answer(res("foo", "2", "y"), nil), state{false, false, 2}},
		{"no answer, but an error", answer(nil, unavailable), state{true, true, 1}}, // the entry has the error, too
		{"the end of the time", func(c *Cache) { c.Renew(scope) }, state{false, false, 2}},
		{"the end of the time of another scope", func(c *Cache) { c.Renew(Scope{Authority: "b"}) }, state{true, true, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := New(newFeeds(), Options{Linger: time.Hour})
			defer c.Close()
			var entryWatch, setWatch, late renewedWatcher
			e, _ := c.Watch(Key{Scope: scope, TypeURL: "T", Name: "foo"}, &entryWatch)
			s := c.WatchSet(Key{Scope: scope, TypeURL: "T", Name: Wildcard}, &setWatch)
			unanswered, _ := c.Watch(Key{Scope: scope, TypeURL: "T", Name: "bar"}, &late)
			answer(there, nil)(c)
			before := entryWatch.n + setWatch.n
			c.Outdate(scope)
			if unanswered.Outdated() {
				t.Error("a topic without an answer is outdated")
			}
			tt.then(c)
			if is := (state{e.Outdated(), s.Outdated(), entryWatch.n + setWatch.n - before}); is != tt.want {
				t.Errorf("they are %+v, want %+v", is, tt.want)
			}
		})
	}
}
