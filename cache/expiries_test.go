package cache

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// After any sequence of Set and End, each key is due once, at its last time.
func TestExpiriesAreDueInTheOrderOfTheirTimes(t *testing.T) {
	start := time.Unix(1, 0)
	rapid.Check(t, func(t *rapid.T) {
		var e Expiries[int]
		want := map[int]int{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			key := rapid.IntRange(0, 5).Draw(t, "key")
			if at := rapid.IntRange(-3, 9).Draw(t, "at"); at < 0 {
				e.End(key)
				delete(want, key)
			} else {
				e.Set(key, start.Add(time.Duration(at)*time.Second))
				want[key] = at
			}
			earliest := 10
			for _, at := range want {
				earliest = min(earliest, at)
			}
			if key, when, ok := e.First(); ok != (len(want) > 0) || ok && (want[key] != earliest || !when.Equal(start.Add(time.Duration(earliest)*time.Second))) {
				t.Fatalf("the first is %d at %s: %t, want %d", key, when, ok, earliest)
			}
		}
		for now := range 10 {
			for _, key := range e.Due(start.Add(time.Duration(now) * time.Second)) {
				if at, ok := want[key]; !ok || at != now {
					t.Fatalf("at %d a key is due whose time is %d", now, at)
				}
				delete(want, key)
			}
		}
		if len(want) > 0 || e.Len() > 0 {
			t.Fatalf("%d were never due, %d are left", len(want), e.Len())
		}
	})
}
