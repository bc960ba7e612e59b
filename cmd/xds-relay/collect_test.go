package main

import (
	"testing"
	"time"
)

// What clients held is collected soon after they have left, and never more often than once
// in collectAfter.
func TestGarbageOfClientsThatHaveLeftIsCollected(t *testing.T) {
	now := time.Now()
	var ended, cycles uint64
	collected := 0
	c := collector{
		ended:  func() uint64 { return ended },
		cycles: func() uint64 { return cycles },
		collect: func() {
			collected++
			cycles++
		},
		last: now,
	}
	pass := func(d time.Duration, want int) {
		t.Helper()
		for range d / collectEvery {
			now = now.Add(collectEvery)
			c.tick(now)
		}
		if collected != want {
			t.Errorf("collected %d times, want %d", collected, want)
		}
	}
	pass(time.Hour, 0) // nobody has left
	ended++
	pass(collectEvery, 1)
	pass(time.Hour, 1)
	ended++
	cycles++ // Go's own, which may have begun before
	pass(collectAfter, 1)
	pass(collectEvery, 2)
	ended++
	pass(10*collectAfter, 3)
	for i := range 6 { // streams end all the time
		ended++
		pass(collectEvery, 4+i/2)
	}
}
