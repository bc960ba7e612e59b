package members

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache/resource"
)

func res(name, content string) *resource.Resource {
	return resource.New(resource.Spec{Name: name, TypeURL: "type.googleapis.com/x", Value: []byte(content)})
}

// After any changes members are found by their keys, and are in the order of their
// last change, also when their records have moved, the numbers of the changes are far
// apart, and a member is very old.
func TestMembersAreInTheOrderOfTheirLastChange(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var ms Members
		model := map[string]Member{}
		names := rapid.SampledFrom([]int{1, 10, 100, 1000}).Draw(rt, "names")
		gap := rapid.SampledFrom([]uint64{1, 1, 1 << 20, 1 << 31, 1 << 33}).Draw(rt, "gap")
		seq := uint64(0)
		for range rapid.SampledFrom([]int{0, 30, 1000, 5000}).Draw(rt, "steps") {
			key := fmt.Sprint(rapid.IntRange(1, names).Draw(rt, "key"))
			m := ms.Get(key)
			if w := model[key]; m.Resource != w.Resource || m.Removed != w.Removed || m.Added != w.Added || m.Seq != w.Seq {
				rt.Fatalf("%q: %+v, want %+v", key, m, w)
			}
			if m.Resource != nil && ms.Key(m) != key {
				rt.Fatalf("%q is %q", key, ms.Key(m))
			}
			spelled := rapid.SampledFrom([]string{"", "", "", "spelled "}).Draw(rt, "spelled") + key
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0:
				if m.Resource != nil {
					ms.Remove(m)
					delete(model, key)
				}
			case 1:
				if m.Resource != nil {
					m.Resource = res(spelled, "y")
					ms.SetResource(m, m.Resource)
					model[key] = m
				}
			default:
				seq += rapid.Uint64Range(1, gap).Draw(rt, "later")
				if m.Seq = seq; m.Resource == nil {
					m.Added = seq
				}
				m.Resource, m.Removed = res(spelled, "x"), rapid.Bool().Draw(rt, "removed")
				ms.Put(key, &m)
				model[key] = m
			}
		}
		want := slices.SortedFunc(maps.Values(model), func(a, b Member) int {
			if a.Seq < b.Seq {
				return -1
			}
			return 1
		})
		after := seq - rapid.Uint64Range(0, seq).Draw(rt, "after")
		want = slices.DeleteFunc(want, func(m Member) bool { return m.Seq <= after })
		i := 0
		for m := range ms.After(after) {
			if i == len(want) || m.Resource != want[i].Resource || m.Seq != want[i].Seq {
				rt.Fatalf("after %d: %d is %+v, of %d", after, i, m, len(want))
			}
			i++
		}
		if i != len(want) || ms.Len() != len(model) {
			rt.Fatalf("%d of %d after %d, and %d of %d", i, len(want), after, ms.Len(), len(model))
		}
		live := 0
		for c := ms.front; c != nil; c = c.next {
			if live += c.live; c != ms.back && c.next != ms.back && c.live+c.next.live <= packLen && gap == 1 {
				rt.Fatalf("two chunks of %d and %d", c.live, c.next.live)
			}
		}
		if live != len(model) || len(ms.exceptions) > len(model) {
			rt.Fatalf("%d live and %d exceptions, of %d", live, len(ms.exceptions), len(model))
		}
	})
}
