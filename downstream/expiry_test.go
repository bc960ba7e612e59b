package downstream

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTheFirstExpiryIsKnown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e Expiries
		var open []*expiry
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				open = append(open, e.add(time.Unix(int64(rapid.IntRange(0, 50).Draw(t, "at")), 0)))
			},
			"end": func(t *rapid.T) {
				if len(open) == 0 {
					t.Skip("none is open")
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				e.remove(open[i])
				open = append(open[:i], open[i+1:]...)
			},
			"": func(t *rapid.T) {
				want, any := time.Time{}, false
				for _, of := range open {
					if !any || of.at.Before(want) {
						want, any = of.at, true
					}
				}
				if got, ok := e.First(); ok != any || !got.Equal(want) {
					t.Fatalf("got %v, %t, want %v, %t", got, ok, want, any)
				}
			},
		})
	})
}
