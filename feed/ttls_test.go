package feed

import (
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Nothing is kept of a TTL that has ended, whichever update has ended it.
func TestTTLsAreForgottenWithTheirResources(t *testing.T) {
	resource := cache.NewResource(cache.Spec{Name: "x", TypeURL: someType, TTL: time.Minute})
	x := cache.Change{Name: "x", Resource: resource}
	in := func(u cache.SetUpdate) cache.Update {
		u.Name = cache.Wildcard
		return cache.Update{Scope: someScope, TypeURL: someType, Sets: []cache.SetUpdate{u}}
	}
	of := func(c cache.Change) cache.Update {
		return cache.Update{Scope: someScope, TypeURL: someType, Changes: []cache.Change{c}}
	}
	without := cache.NewResource(cache.Spec{Name: "x", TypeURL: someType})
	failed := &cache.Error{Message: "not now"}
	c := cache.New(silentSource{}, cache.Options{IdleEntries: 1})
	defer c.Close()
	for _, tt := range []struct {
		name        string
		first, then cache.Update
		left        int
	}{
		{"gone", of(x), of(cache.Change{Name: "x"}), 0},
		{"without a time to live", of(x), of(cache.Change{Name: "x", Resource: without}), 0},
		{"cannot be had", of(x), of(cache.Change{Name: "x", Err: failed}), 1},
		{"not wanted", of(cache.Change{Name: "y", Resource: resource}), of(x), 1},
		{"gone from a set", in(cache.SetUpdate{Changes: []cache.Change{x}}), in(cache.SetUpdate{Changes: []cache.Change{{Name: "x"}}}), 0},
		{"missing in all of a set", in(cache.SetUpdate{Changes: []cache.Change{x}}), in(cache.SetUpdate{Extent: cache.Whole}), 0},
		{"not in the first part of all", in(cache.SetUpdate{Changes: []cache.Change{x}}), in(cache.SetUpdate{Extent: cache.Begins}), 0},
		{"a set that cannot be had", in(cache.SetUpdate{Changes: []cache.Change{x}}), in(cache.SetUpdate{Err: failed}), 1},
	} {
		f := &Feed{Options: Options{Cache: c}}
		l := &f.ttls
		wanted := func(k cache.Key) bool { return k.Name != "y" }
		by := &Link{active: true}
		for _, u := range []cache.Update{tt.first, tt.then} {
			f.resolve([]cache.Update{u})
			l.record(&u, nil, by, wanted, time.Now())
		}
		if n := l.expiries.Len(); n != tt.left || n == 0 && len(l.servers) > 0 {
			t.Errorf("%s: %d are left, want %d, of %v", tt.name, n, tt.left, l.servers)
		}
	}
}
