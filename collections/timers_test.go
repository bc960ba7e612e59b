package collections

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever times follows are given, and given instead, they are taken in their order.
func TestDueFollowsAreTakenInTheOrderOfTheirTimes(t *testing.T) {
	start := time.Unix(1, 0)
	rapid.Check(t, func(t *rapid.T) {
		follows := make([]lookup, 6)
		var d lookupTimers
		want := map[*lookup]int{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			f := &follows[rapid.IntRange(0, len(follows)-1).Draw(t, "follow")]
			if at := rapid.IntRange(-3, 9).Draw(t, "at"); at < 0 {
				d.set(f, time.Time{})
				delete(want, f)
			} else {
				d.set(f, start.Add(time.Duration(at)*time.Second))
				want[f] = at
			}
		}
		for now := range 10 {
			for f := d.take(start.Add(time.Duration(now) * time.Second)); f != nil; f = d.take(start.Add(time.Duration(now) * time.Second)) {
				if at, ok := want[f]; !ok || at != now {
					t.Fatalf("at %d one is taken whose time is %d", now, at)
				}
				delete(want, f)
			}
		}
		if len(want) > 0 {
			t.Fatalf("%d were never taken", len(want))
		}
	})
}
