package hashtable

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

type thing struct{ key string }

func keyOf(t *thing) string { return t.key }

// A table has the same content as a map after the same changes, and is neither overfull nor much too
// large.
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
			"grow": func(t *rapid.T) {
				n := rapid.IntRange(1, keys).Draw(t, "n")
				table.Grow(n, keyOf)
				reserved = max(reserved, 2*(len(want)+n))
			},
			"fit": func(t *rapid.T) {
				table.Fit(keyOf)
				if room, most := len(table.slots), slotsFor(capacityFor(len(want))); room > most {
					t.Fatalf("%d slots for %d, want at most %d", room, len(want), most)
				}
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

// filled returns a table with n values.
func filled(n int) (table Table[*thing]) {
	for i := range n {
		k := fmt.Sprint("key-", i)
		table.Put(k, &thing{k}, keyOf)
	}
	return table
}

// Other goroutines run while a large table is rebuilt, after each part of it and not after 10 ms as the scheduler
// has it: with a million values, one Put can take a tenth of a second.
func TestOthersRunWhileALargeTableGrows(t *testing.T) {
	const parts = 20
	table := filled(parts * pauseEvery)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var turns atomic.Int64
	var over atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !over.Load() {
			turns.Add(1)
			runtime.Gosched()
		}
	}()
	before := turns.Load()
	table.Reserve(4*parts*pauseEvery, keyOf)
	if n := turns.Load() - before; n < parts-2 {
		t.Errorf("others had %d turns, want about %d", n, parts)
	}
	over.Store(true)
	<-ended
}

// If Grow makes the room, a table to which values are added one by one visits them less than twice more, and Fit
// leaves no more room than Put alone.
func TestGrowingTableIsSeldomRebuilt(t *testing.T) {
	const few, n = 1000, 100_000
	looked := 0
	count := func(t *thing) string {
		looked++
		return t.key
	}
	table := filled(few)
	for i := few; i < n; i++ {
		k := fmt.Sprint("key-", i)
		table.Grow(1, count)
		table.Put(k, &thing{k}, keyOf)
	}
	if looked > 2*n {
		t.Errorf("%d things were looked at to add %d, want less than twice as many", looked, n)
	}
	table.Fit(keyOf)
	if room, most := len(table.slots), slotsFor(capacityFor(n)); room > most {
		t.Errorf("room for %d, want at most %d", room, most)
	}
	for i := range n {
		if _, found := table.Get(fmt.Sprint("key-", i), keyOf); !found {
			t.Fatalf("key-%d is lost", i)
		}
	}
}
