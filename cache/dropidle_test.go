package cache

import (
	"testing"
	"testing/synctest"
	"time"
)

// starts counts the topics that a source feeds.
type starts map[Key]int

func (s starts) Start(k Key) { s[k]++ }
func (s starts) Refresh(Key) {}
func (s starts) Stop(k Key)  { s[k]-- }

func TestEntriesDoNotLingerWhileTheControlPlaneIsRestless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fed := starts{}
		c := New(fed, Options{Linger: time.Hour, IdleEntries: 10})
		defer c.Close()
		scope, other := Scope{Authority: "a"}, Scope{Authority: "b"}
		key := func(scope Scope, name string) Key { return Key{Scope: scope, TypeURL: "t", Name: name} }
		visit := func(k Key) {
			w := &counter{}
			c.Watch(k, w)
			c.Apply(Update{Scope: k.Scope, TypeURL: k.TypeURL, Changes: []Change{{Name: k.Name}}})
			c.Unwatch(w)
		}
		want := func(when string, lingering ...Key) {
			t.Helper()
			now := map[Key]int{}
			for _, k := range lingering {
				now[k] = 1
			}
			for k, n := range fed {
				if n != now[k] {
					t.Errorf("%s: %v is fed %d times, want %d", when, k, n, now[k])
				}
			}
		}
		watched := key(scope, "watched")
		c.Watch(watched, &counter{})
		set := &setCounter{}
		c.WatchSet(key(scope, Wildcard), set)
		c.Unwatch(set)
		visit(key(scope, "left"))
		visit(key(other, "left"))
		want("before", watched, key(scope, Wildcard), key(scope, "left"), key(other, "left"))
		c.DropIdle(scope, 2*time.Second)
		want("dropped", watched, key(scope, Wildcard), key(other, "left"))
		time.Sleep(1900 * time.Millisecond)
		visit(key(scope, "leaves"))
		want("soon after", watched, key(scope, Wildcard), key(other, "left"))
		time.Sleep(200 * time.Millisecond)
		visit(key(scope, "leaves"))
		want("in quiet times", watched, key(scope, Wildcard), key(other, "left"), key(scope, "leaves"))
	})
}
