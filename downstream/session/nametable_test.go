package session

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// The table of a client's subscriptions holds what a map would, whatever was added
// and removed before.
func TestNameTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table nameTable
		subs := subscriptions{Client: &Client{}}
		is := map[string]*nameSub{}
		names := rapid.SampledFrom([]int{3, 20, 300}).Draw(t, "names")
		name := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprint("name-", rapid.IntRange(0, names).Draw(t, "name"))
		})
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				n := name.Draw(t, "n")
				if is[n] != nil {
					return
				}
				is[n] = subs.newSub()
				is[n].rarely(refByName(n))
				table.add(is[n])
			},
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "n")
				if is[n] == nil {
					return
				}
				table.remove(is[n])
				delete(is, n)
			},
			"expect": func(t *rapid.T) { table.expect(rapid.IntRange(0, 2*names).Draw(t, "n")) },
			"": func(t *rapid.T) {
				for i := range names + 1 {
					n := fmt.Sprint("name-", i)
					if got := table.get(n); got != is[n] {
						t.Fatalf("%s: %p, want %p", n, got, is[n])
					}
				}
				n := 0
				for sub := range table.all() {
					if is[sub.key()] != sub {
						t.Fatalf("%s is in the table, and was not added", sub.key())
					}
					n++
				}
				if n != len(is) || table.len() != n {
					t.Fatalf("%d subscriptions, %d by count, want %d", n, table.len(), len(is))
				}
				if len(table.slots) > 8*(minSlots+2*names+n) || 10*n > tenths*len(table.slots) {
					t.Fatalf("%d slots for %d", len(table.slots), n)
				}
			},
		})
	})
}
