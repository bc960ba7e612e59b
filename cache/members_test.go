package cache

import (
	"fmt"
	"maps"
	"slices"
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

// After any changes members are found by their keys, and are in the order of their
// last change, also when their records have moved, the numbers of the changes are far
// apart, and a member is very old.
func TestMembersAreInTheOrderOfTheirLastChange(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var ms members
		model := map[string]member{}
		names := rapid.SampledFrom([]int{1, 10, 100, 1000}).Draw(rt, "names")
		gap := rapid.SampledFrom([]uint64{1, 1, 1 << 20, 1 << 31, 1 << 33}).Draw(rt, "gap")
		seq := uint64(0)
		for range rapid.SampledFrom([]int{0, 30, 1000, 5000}).Draw(rt, "steps") {
			key := fmt.Sprint(rapid.IntRange(1, names).Draw(rt, "key"))
			m := ms.get(key)
			if w := model[key]; m.resource != w.resource || m.removed != w.removed || m.added != w.added || m.seq != w.seq {
				rt.Fatalf("%q: %+v, want %+v", key, m, w)
			}
			if m.resource != nil && ms.key(m) != key {
				rt.Fatalf("%q is %q", key, ms.key(m))
			}
			spelled := rapid.SampledFrom([]string{"", "", "", "spelled "}).Draw(rt, "spelled") + key
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0:
				if m.resource != nil {
					ms.remove(m)
					delete(model, key)
				}
			case 1:
				if m.resource != nil {
					m.resource = res(spelled, "", "y")
					ms.set(m, m.resource)
					model[key] = m
				}
			default:
				seq += rapid.Uint64Range(1, gap).Draw(rt, "later")
				if m.seq = seq; m.resource == nil {
					m.added = seq
				}
				m.resource, m.removed = res(spelled, "", "x"), rapid.Bool().Draw(rt, "removed")
				ms.put(key, &m)
				model[key] = m
			}
		}
		want := slices.SortedFunc(maps.Values(model), func(a, b member) int {
			if a.seq < b.seq {
				return -1
			}
			return 1
		})
		after := seq - rapid.Uint64Range(0, seq).Draw(rt, "after")
		want = slices.DeleteFunc(want, func(m member) bool { return m.seq <= after })
		i := 0
		for m := range ms.after(after) {
			if i == len(want) || m.resource != want[i].resource || m.seq != want[i].seq {
				rt.Fatalf("after %d: %d is %+v, of %d", after, i, m, len(want))
			}
			i++
		}
		if i != len(want) || ms.len() != len(model) {
			rt.Fatalf("%d of %d after %d, and %d of %d", i, len(want), after, ms.len(), len(model))
		}
		live := 0
		for c := ms.front; c != nil; c = c.next {
			if live += c.live; c != ms.back && c.next != ms.back && c.live+c.next.live <= packLen && gap == 1 {
				rt.Fatalf("two chunks of %d and %d", c.live, c.next.live)
			}
		}
		if live != len(model) || len(ms.exceptions) > len(model) {
			rt.Fatalf("%d live and %d odd, of %d", live, len(ms.exceptions), len(model))
		}
	})
}
