package process

import (
	"context"
	"math"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

// recordingHeadroom returns a Headroom that reads its heap from use, and the percentages that it sets.
func recordingHeadroom(use *heapUse) (*Headroom, *[]int) {
	var set []int
	h := NewHeadroom()
	h.heap = func() heapUse { return *use }
	h.setPercent = func(percent int) {
		set = append(set, percent)
		use.percent = uint64(percent)
	}
	return h, &set
}

// While large responses are processed the heap may grow by eight times their size, and as before five seconds
// after the last one.
func TestHeapHasHeadroomWhileLargeResponsesAreProcessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		use := heapUse{live: 20 * mib, limit: math.MaxInt64, percent: 100}
		h, set := recordingHeadroom(&use)
		ctx, end := context.WithCancel(t.Context())
		go h.Run(ctx)
		want := func(percents ...int) {
			t.Helper()
			if synctest.Wait(); !slices.Equal(*set, percents) {
				t.Fatalf("set %v, want %v", *set, percents)
			}
		}
		h.Expect(4 * mib)
		want(160)
		time.Sleep(headroomLasts - time.Second)
		h.Expect(4 * mib)
		want(160, 320)
		time.Sleep(headroomLasts - time.Second)
		want(160, 320)
		time.Sleep(time.Second)
		want(160, 320, 100)
		time.Sleep(time.Hour)
		h.Expect(5 * mib) // what came before the quiet time does not count any more
		want(160, 320, 100, 200)
		end()
		want(160, 320, 100, 200, 100)
	})
}

func TestHeadroomIsBounded(t *testing.T) {
	const none = math.MaxInt64
	for _, test := range []struct {
		name     string
		use      heapUse
		expected uint64
		want     []int
	}{
		{"by a fixed size", heapUse{live: 100 * mib, limit: none, percent: 100}, 1 << 40, []int{512}},
		{"by half of what remains below the memory limit", heapUse{live: 100 * mib, total: 200 * mib, limit: 700 * mib, percent: 100}, 1 << 40, []int{250}},
		{"by nothing above the memory limit", heapUse{live: 100 * mib, total: 800 * mib, limit: 700 * mib, percent: 100}, 1 << 40, nil},
		{"from the size at which Go begins to collect", heapUse{live: 0, limit: none, percent: 100}, 4 * mib, []int{800}},
		{"where the heap may double anyway", heapUse{live: 900 * mib, limit: none, percent: 100}, 1 << 40, nil},
		{"where GOGC allows more", heapUse{live: 100 * mib, limit: none, percent: 600}, 1 << 40, nil},
		{"where GOGC is off", heapUse{live: 100 * mib, limit: none, percent: math.MaxUint64}, 1 << 40, nil},
		{"below a change that is worth stopping all goroutines", heapUse{live: 100 * mib, limit: none, percent: 100}, 15 * mib, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			h, set := recordingHeadroom(&test.use)
			h.expected.Store(test.expected)
			h.raise()
			if !slices.Equal(*set, test.want) {
				t.Errorf("set %v, want %v", *set, test.want)
			}
		})
	}
}

// The headroom shrinks with each collection that finds more live memory.
func TestHeadroomDoesNotGrowWithTheHeap(t *testing.T) {
	use := heapUse{live: 20 * mib, limit: math.MaxInt64, percent: 100}
	h, set := recordingHeadroom(&use)
	h.expected.Store(64 * mib)
	for _, live := range []uint64{20, 200, 400, 600} {
		use.live = live * mib
		h.raise()
	}
	h.lower()
	if want := []int{2560, 256, 128, 100, 100}; !slices.Equal(*set, want) {
		t.Errorf("set %v, want %v", *set, want)
	}
}

// The runtime has all figures, and takes the percentage.
func TestHeadroomIsThatOfTheRuntime(t *testing.T) {
	h := NewHeadroom()
	runtime.GC()
	before := goHeap()
	if before.live == 0 || before.total == 0 || before.limit == 0 || before.percent == 0 {
		t.Fatalf("the runtime says %+v", before)
	}
	if before.percent > math.MaxInt32 {
		t.Skip("GOGC is off")
	}
	h.Expect(maxHeadroom)
	h.raise()
	if during := goHeap(); during.percent <= before.percent {
		t.Errorf("GOGC is %d%%, and was %d%%", during.percent, before.percent)
	}
	h.lower()
	if after := goHeap(); after.percent != before.percent {
		t.Errorf("GOGC is %d%%, and was %d%%", after.percent, before.percent)
	}
}
