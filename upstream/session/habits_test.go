package session

import (
	"sync"
	"testing"
	"time"
)

func TestHowLongALargeFirstAnswerIsWaitedFor(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	for _, test := range []struct {
		what          string
		size, largest int
		took, want    time.Duration
	}{
		{"below all limits", 900_000, kib, 0, 0},
		{"below all limits, of few resources", 940 * kib, 300 * kib, 0, 0},
		{"just below 1 MiB", mib - 500, kib, 0, settleTime},
		{"just above 1 MiB, if the last one counts no more", mib + 900, kib, 0, settleTime},
		{"1,000 of 1 KiB", 1_110_000, 1110, 0, leastSettle},
		{"1,000 of 1 KiB, at once", 1_110_000, 1110, 10 * time.Millisecond, leastSettle},
		{"1,000 of 1 KiB, after a while", 1_110_000, 1110, 200 * time.Millisecond, 400 * time.Millisecond},
		{"1,000 of 1 KiB, after long", 1_110_000, 1110, time.Minute, settleTime},
		{"11 of 100 KiB: any limit may be near", 1_110_000, 100 * kib, 0, settleTime},
		{"just below 1.25 MB", 1_249_000, kib, 0, settleTime},
		{"just below 1.5 MiB", 3*mib/2 - kib, kib, 0, settleTime},
		{"2 MiB less what is kept free", 2*mib - 200*kib, kib, 0, settleTime},
		{"4 MiB", 4 * mib, kib, 0, settleTime},
		{"20 MiB", 20 * mib, kib, 0, settleTime},
	} {
		for _, h := range []*Habits{new(Habits), {guard: new(sync.Mutex)}} {
			if got := h.wait(test.size, test.largest, test.took); got != test.want {
				t.Errorf("%s: %d bytes are waited for %s, want %s", test.what, test.size, got, test.want)
			}
		}
	}
}

// Once a control plane was seen to cut, no large response of it counts as whole any more.
func TestMoreIsAwaitedFromAControlPlaneThatHasCut(t *testing.T) {
	h := new(Habits)
	h.wasWhole(5 << 20)
	if got := h.wait(5<<20, 1, 0); got != 0 {
		t.Errorf("what has been whole is waited for %s", got)
	}
	h.wasCut()
	h.wasWhole(6 << 20)
	if got := h.wait(5<<20, 1, 0); got != settleTime {
		t.Errorf("who has cut is waited for %s, want %s", got, settleTime)
	}
	if got := h.wait(900_000, 1, 0); got != 0 {
		t.Errorf("what is not large is waited for %s", got)
	}
}

// All streams to a control plane share its habits.
func TestHabitsAreNotedUnderConcurrency(t *testing.T) {
	h := &Habits{guard: new(sync.Mutex)}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 1000 {
				h.wasWhole(1<<20 + i*1000 + n)
				h.wait(2<<20, 1, 0)
			}
		})
	}
	wg.Wait()
	if want := 1<<20 + 7999; h.whole != want {
		t.Errorf("the largest was of %d bytes, want %d", h.whole, want)
	}
}
