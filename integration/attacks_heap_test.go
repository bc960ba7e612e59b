package integration

// What an attack leaves behind.

import (
	"testing"
	"time"
)

// keptByGo is what Go keeps of what a process has had, half a KiB for each goroutine that
// there was at once, and what libraries make when they are used first: about 1 MiB. (A relay
// that has nothing to do holds 4 MiB.)
const keptByGo = 2 << 20

// awaitLive waits until the live heap is small again, a minute at most.
func (at *target) awaitLive(t *testing.T, before, most int) {
	t.Helper()
	began := time.Now()
	pace := time.NewTicker(time.Second) // to look at it is work, and garbage
	defer pace.Stop()
	for {
		now := at.live(t)
		if now <= most {
			t.Logf("the live heap was %d KiB, and is %d KiB after %v", before>>10, now>>10, time.Since(began).Round(time.Second))
			return
		}
		if time.Since(began) > time.Minute {
			t.Errorf("the live heap was %d KiB, and is %d KiB after a minute, want %d at most", before>>10, now>>10, most>>10)
			return
		}
		<-pace.C
	}
}
