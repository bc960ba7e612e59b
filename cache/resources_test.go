package cache

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"
)

func TestResourcesAreThoseOfAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rs, model := NewResources(rapid.IntRange(0, 40).Draw(rt, "room")), map[string]*Resource{}
		names := rapid.IntRange(1, 2000).Draw(rt, "names")
		for range rapid.SampledFrom([]int{0, 30, 1000, 5000}).Draw(rt, "steps") {
			key := fmt.Sprint(rapid.IntRange(0, names).Draw(rt, "key"))
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0, 1:
				r := res(key, "", "x")
				rs.Put(key, r)
				model[key] = r
			case 2:
				r := res("spelled "+key, "", "x")
				rs.Put(key, r)
				model[key] = r
			default:
				rs.Delete(key)
				delete(model, key)
			}
			if got := rs.Get(key); got != model[key] || rs.Len() != len(model) {
				rt.Fatalf("%q: %p of %d, want %p of %d", key, got, rs.Len(), model[key], len(model))
			}
		}
		if got := maps.Collect(rs.All()); !maps.Equal(got, model) {
			rt.Fatalf("%d, want %d", len(got), len(model))
		}
	})
	var none *Resources
	if none.Get("a") != nil || none.Len() > 0 || len(maps.Collect(none.All())) > 0 {
		t.Error("nil is not empty")
	}
}
