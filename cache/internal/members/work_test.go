package members

import (
	"fmt"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/internal/costs"
)

// Removals that a watcher had to receive first are added late, among newer ones.
func TestWorkOfTombstones(t *testing.T) {
	for name, room := range map[string]int{"with room": 2, "without": 1} {
		t.Run(name, func(t *testing.T) {
			costs.Linear(t, 1000, func(t *testing.T, n int) {
				all := Tombstones{Bounds: Bounds{TTL: time.Hour, Limit: room * n}}
				begin := time.Unix(0, 0)
				for i := range n {
					all.Add(Tombstone{Key: fmt.Sprint("new", i), At: begin.Add(time.Duration(n+i) * time.Second)})
				}
				for i := range n {
					all.Add(Tombstone{Key: fmt.Sprint("old", i), At: begin.Add(time.Duration(i) * time.Second)})
				}
				if got := all.Len(); got != room*n || got != len(all.byKey) {
					t.Errorf("%d are remembered, want %d", got, room*n)
				}
				last := begin
				for removal := range all.All() {
					at := removal.At
					if at.Before(last) {
						t.Fatal("they are not in order")
					}
					last = at
				}
			})
		})
	}
}
