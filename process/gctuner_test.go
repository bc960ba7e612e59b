package process

import (
	"context"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

// settings records what a GCTuner sets.
type settings struct {
	mu              sync.Mutex
	percents, procs []int
}

func (s *settings) gogc() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.percents)
}

// recordingTuner returns a GCTuner that reads its heap from use, and what it sets.
func recordingTuner(use *heapUse) (*GCTuner, *settings) {
	var set settings
	t := NewGCTuner()
	t.heap = func() heapUse { return *use }
	t.setPercent = func(percent int) {
		set.mu.Lock()
		defer set.mu.Unlock()
		set.percents = append(set.percents, percent)
	}
	t.setProcs = func(n int) {
		set.mu.Lock()
		defer set.mu.Unlock()
		set.procs = append(set.procs, n)
	}
	return t, &set
}

// While large responses are processed the heap may grow by eight times their size. Five seconds after the last one the
// runtime is as before.
func TestHeapHasHeadroomWhileLargeResponsesAreProcessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		use := heapUse{live: 20 * mib, limit: math.MaxInt64, percent: 100}
		tuner, set := recordingTuner(&use)
		ctx, end := context.WithCancel(t.Context())
		go tuner.Run(ctx)
		want := func(want ...int) {
			t.Helper()
			synctest.Wait()
			if got := set.gogc(); !slices.Equal(got, want) {
				t.Fatalf("set GOGC to %v, want %v", got, want)
			}
		}
		tuner.Expect(4 * mib)
		want(160)
		time.Sleep(tunedFor - time.Second)
		tuner.Expect(4 * mib)
		want(160, 320)
		time.Sleep(tunedFor - time.Second)
		want(160, 320)
		time.Sleep(time.Second)
		want(160, 320, 100)
		time.Sleep(time.Hour)
		tuner.Expect(5 * mib) // what came before the quiet time does not count any more
		want(160, 320, 100, 200)
		end()
		want(160, 320, 100, 200, 100)
		if p := set.procs; len(p) != 4 || p[1] != 0 || p[3] != 0 {
			t.Errorf("set GOMAXPROCS to %v, want a value and the default, twice", p)
		}
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
			tuner, set := recordingTuner(&test.use)
			tuner.expected.Store(test.expected)
			tuner.tune()
			if got := set.gogc(); !slices.Equal(got, test.want) {
				t.Errorf("set GOGC to %v, want %v", got, test.want)
			}
		})
	}
}

// The headroom shrinks with each collection that finds more live memory.
func TestHeadroomDoesNotGrowWithTheHeap(t *testing.T) {
	use := heapUse{live: 20 * mib, limit: math.MaxInt64, percent: 100}
	tuner, set := recordingTuner(&use)
	tuner.expected.Store(64 * mib)
	for _, live := range []uint64{20, 200, 400, 600} {
		use.live = live * mib
		tuner.tune()
	}
	tuner.restore()
	if want := []int{2560, 256, 128, 100}; !slices.Equal(set.gogc(), want) {
		t.Errorf("set GOGC to %v, want %v", set.gogc(), want)
	}
}

func TestCollectorGetsAProcessorOfItsOwnOnASmallMachine(t *testing.T) {
	for _, test := range []struct {
		name        string
		cpus, procs int
		env         string
		want        int
	}{
		{"one processor", 1, 1, "", 4},
		{"two processors", 2, 2, "", 4},
		{"four have one for the collector", 4, 4, "", 0},
		{"a CPU limit", 16, 2, "", 0},
		{"GOMAXPROCS is set", 2, 2, "2", 0},
	} {
		if got := procsFor(test.cpus, test.procs, test.env); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

// The runtime reports all figures, and takes the settings.
func TestTunedIsTheRuntime(t *testing.T) {
	tuner := NewGCTuner()
	runtime.GC()
	before, procs := goHeap(), runtime.GOMAXPROCS(0)
	if before.live == 0 || before.total == 0 || before.limit == 0 || before.percent == 0 {
		t.Fatalf("the runtime reports %+v", before)
	}
	if before.percent > math.MaxInt32 {
		t.Skip("GOGC is off")
	}
	want := procsFor(runtime.NumCPU(), procs, os.Getenv("GOMAXPROCS"))
	tuner.Expect(maxHeadroom)
	tuner.tune()
	if during := goHeap(); during.percent <= before.percent {
		t.Errorf("GOGC is %d%%, and was %d%%", during.percent, before.percent)
	}
	if n := runtime.GOMAXPROCS(0); want > 0 && n != want {
		t.Errorf("GOMAXPROCS is %d, want %d", n, want)
	}
	tuner.restore()
	if after := goHeap(); after.percent != before.percent {
		t.Errorf("GOGC is %d%%, and was %d%%", after.percent, before.percent)
	}
	if n := runtime.GOMAXPROCS(0); n != procs {
		t.Errorf("GOMAXPROCS is %d, and was %d", n, procs)
	}
}
