package cache

import (
	"strings"
	"testing"
)

func TestSmallClientsRequestFewBytesOfNames(t *testing.T) {
	c := New(newFeeds(), Options{})
	defer c.Close()
	join := func(a *WatchGroup, name string) *Watch {
		w := &Watch{Group: a}
		c.WatchInGroup(Key{TypeURL: "t", Name: name}, w)
		return w
	}
	modest := func(name string) bool { return c.HasSmallClient(Key{TypeURL: "t", Name: name}, 100) }
	crowd := func() *WatchGroup { return &WatchGroup{Changed: func(*Watch) Waker { return nil }} }
	large, small := crowd(), crowd()
	join(large, "shared")
	long := join(large, strings.Repeat("x", 100))
	if modest("shared") || modest("of nobody") {
		t.Error("106 bytes of names, or none, are modest")
	}
	w := join(small, "shared")
	if !modest("shared") {
		t.Error("a name that a modest client asks for, too, is not modest")
	}
	c.Unwatch(w)
	if modest("shared") {
		t.Error("a name is modest after the modest client has left")
	}
	c.Unwatch(long)
	if !modest("shared") {
		t.Error("a client that asks for less again is not modest")
	}
	of := crowd()
	join(of, "of a group")
	join(of, strings.Repeat("w", 101))
	if of.Clients.Store(manyWatchers - 1); modest("of a group") {
		t.Error("what a few clients ask for by one watch is modest")
	}
	if of.Clients.Store(manyWatchers); !modest("of a group") {
		t.Error("what many clients ask for by one watch is not modest")
	}
	join(large, strings.Repeat("y", 100))
	for range manyWatchers {
		a := crowd()
		join(a, strings.Repeat("z", 101))
		join(a, "shared")
	}
	if !modest("shared") || modest(strings.Repeat("y", 100)) {
		t.Error("what many ask for is modest, what one asks for is not")
	}
}
