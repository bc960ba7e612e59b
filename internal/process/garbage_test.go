package process

import (
	"testing"
	"time"
)

// What clients held is collected soon after they have left, and never more often than once
// in collectAfter.
func TestGarbageOfClientsThatHaveLeftIsCollected(t *testing.T) {
	now := time.Now()
	var ended, cycles, allocated uint64
	collected := 0
	c := collector{
		ended:     func() uint64 { return ended },
		cycles:    func() uint64 { return cycles },
		allocated: func() (total, room uint64) { return allocated, 1000 },
		collect: func() {
			collected++
			cycles++
		},
		last: now,
	}
	pass := func(d time.Duration, want int) {
		t.Helper()
		for range d / checkEvery {
			now = now.Add(checkEvery)
			c.tick(now)
		}
		if collected != want {
			t.Errorf("collected %d times, want %d", collected, want)
		}
	}
	pass(time.Hour, 0) // nobody has left
	ended++
	pass(checkEvery, 1)
	pass(2*collectAfter, 3) // what was held upstream has gone meanwhile
	pass(time.Hour, 3)
	ended++
	cycles++ // Go's own, which may have begun before
	pass(collectAfter, 3)
	pass(checkEvery, 4)
	pass(collectAfter, 5)
	pass(time.Hour, 5)
	for i := range 12 { // streams end all the time
		ended++
		pass(checkEvery, 6+i/4)
	}
	pass(time.Hour, 10)
	// All clients reconnect, which needs memory: Go collects by itself soon.
	ended++
	for range 5 {
		allocated += 101
		pass(checkEvery, 10)
	}
	allocated += 100 // not much any more
	pass(checkEvery, 11)
}

// Within a minute what clients held is collected, whenever Go has collected garbage itself.
func TestGarbageIsCollectedWithinAMinute(t *testing.T) {
	for own := range time.Minute / time.Second {
		now := time.Now()
		ended, cycles := uint64(0), uint64(0)
		var collected time.Duration // after they left
		left := now
		c := collector{
			ended:     func() uint64 { return ended },
			cycles:    func() uint64 { return cycles },
			allocated: func() (total, room uint64) { return 0, 1000 },
			collect: func() {
				collected = now.Sub(left)
				cycles++
			},
			last: now,
		}
		ended++
		for i := range time.Minute / time.Second {
			if now = now.Add(time.Second); i == own {
				cycles++
			}
			if i%(checkEvery/time.Second) == 0 {
				c.tick(now)
			}
		}
		if collected < settled-checkEvery {
			t.Errorf("Go's own after %ds: the last collection is %v after they left", own, collected)
		}
	}
}
