package hashtable

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

type thing struct{ key string }

func keyOf(t *thing) string { return t.key }

// A table holds what a map would, whatever was added, replaced and removed before, and is
// neither overfull nor much too large.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table Table[*thing]
		want := map[string]*thing{}
		keys := rapid.SampledFrom([]int{3, 20, 300}).Draw(t, "keys")
		reserved := 0
		key := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprint("key-", rapid.IntRange(0, keys).Draw(t, "key"))
		})
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k := key.Draw(t, "k")
				want[k] = &thing{k}
				table.Put(k, want[k], keyOf)
			},
			"replace": func(t *rapid.T) {
				k := key.Draw(t, "k")
				if old := want[k]; old != nil {
					want[k] = &thing{k}
					table.Replace(k, old, want[k])
				}
			},
			"remove": func(t *rapid.T) {
				k := key.Draw(t, "k")
				table.Remove(k, keyOf)
				delete(want, k)
			},
			"reserve": func(t *rapid.T) {
				n := rapid.IntRange(0, 2*keys).Draw(t, "n")
				table.Reserve(n, keyOf)
				reserved = max(reserved, n)
			},
			"": func(t *rapid.T) {
				for i := range keys + 1 {
					k := fmt.Sprint("key-", i)
					if got, found := table.Get(k, keyOf); got != want[k] || found != (want[k] != nil) {
						t.Fatalf("%s: %p, want %p", k, got, want[k])
					}
				}
				n := 0
				for thing := range table.All() {
					if want[thing.key] != thing {
						t.Fatalf("%s is in the table, and was not added", thing.key)
					}
					n++
				}
				if n != len(want) || table.Len() != n {
					t.Fatalf("%d things, %d by count, want %d", n, table.Len(), len(want))
				}
				if slots := len(table.slots); slots > 4*(n+reserved+4) || n > 0 && n*loadParts > slots*maxLoad {
					t.Fatalf("%d slots for %d", slots, n)
				}
			},
		})
	})
}
