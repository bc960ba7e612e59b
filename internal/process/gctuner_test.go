package process

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
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
	use             heapUse
	percents, procs []int
	collections     int
}

func (s *settings) gogc() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.percents)
}

func (s *settings) setLive(bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use.live = bytes
}

// recordingTuner returns a GCTuner that reads its heap from the settings, and records there what it sets.
func recordingTuner(use heapUse) (*GCTuner, *settings) {
	set := settings{use: use}
	locked := func(f func()) {
		set.mu.Lock()
		defer set.mu.Unlock()
		f()
	}
	t := NewGCTuner()
	t.heap = func() (use heapUse) {
		locked(func() { use = set.use })
		return use
	}
	t.setPercent = func(percent int) { locked(func() { set.percents = append(set.percents, percent) }) }
	t.collect = func() { locked(func() { set.collections++ }) }
	t.procs = func() int { return ownProcessor }
	t.setProcs = func(n int) { locked(func() { set.procs = append(set.procs, n) }) }
	return t, &set
}

// While large responses are processed the heap may grow by eight times their size. A while after the last one, the
// runtime is as before.
func TestHeapHasHeadroomWhileLargeResponsesAreProcessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tuner, set := recordingTuner(heapUse{live: 30 * mib, scanned: 10 * mib, limit: math.MaxInt64, percent: 100})
		ctx, end := context.WithCancel(t.Context())
		go tuner.Run(ctx)
		want := func(want ...int) {
			t.Helper()
			synctest.Wait()
			if got := set.gogc(); !slices.Equal(got, want) {
				t.Fatalf("set GOGC to %v, want %v", got, want)
			}
		}
		tuner.Expect(mib)
		want() // it is small for this heap
		tuner.Expect(15 * mib)
		want(320)
		tuner.Expect(4 * mib)
		want(320, 400)
		time.Sleep(tunedFor + retuneEvery)
		want(320, 400)
		time.Sleep(tunedFor)
		want(320, 400, 100)
		time.Sleep(time.Hour)
		tuner.Expect(17 * mib) // what came before the quiet time does not count any more
		want(320, 400, 100, 340)
		end()
		want(320, 400, 100, 340, 100)
	})
}

// The collector has a processor of its own while there are many large responses: not for a few now and then, and not for
// the few that come later.
func TestCollectorHasAProcessorWhileThereAreManyLargeResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tuner, set := recordingTuner(heapUse{live: 20 * mib, limit: math.MaxInt64, percent: 100})
		ctx, end := context.WithCancel(t.Context())
		go tuner.Run(ctx)
		want := func(procs []int, collections int) {
			t.Helper()
			synctest.Wait()
			set.mu.Lock()
			defer set.mu.Unlock()
			if !slices.Equal(set.procs, procs) || set.collections != collections {
				t.Fatalf("set GOMAXPROCS to %v and collected %d times, want %v and %d times", set.procs, set.collections, procs, collections)
			}
		}
		for range 10 {
			tuner.Expect(4 * mib)
			time.Sleep(tunedFor - retuneEvery)
		}
		want(nil, 0)
		time.Sleep(time.Hour)
		tuner.Expect(8 * mib)
		want(nil, 0)
		tuner.Expect(8 * mib)
		want([]int{ownProcessor}, 0)
		for range 10 {
			time.Sleep(tunedFor / 2)
			tuner.Expect(2 * mib)
		}
		want([]int{ownProcessor, 0}, 1)
		tuner.Expect(16 * mib)
		want([]int{ownProcessor, 0, ownProcessor}, 1)
		end()
		want([]int{ownProcessor, 0, ownProcessor, 0}, 1)
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
		{"by a fixed size, of which stacks count", heapUse{live: 100 * mib, scanned: 28 * mib, limit: none, percent: 100}, 1 << 40, []int{400}},
		{"by half of what remains below the memory limit", heapUse{live: 100 * mib, needed: 200 * mib, limit: 700 * mib, percent: 100}, 1 << 40, []int{250}},
		{"by nothing above the memory limit", heapUse{live: 100 * mib, needed: 800 * mib, limit: 700 * mib, percent: 100}, 1 << 40, nil},
		{"from the size at which Go begins to collect", heapUse{live: 0, limit: none, percent: 100}, 16 * mib, []int{3200}},
		{"where the heap may double anyway", heapUse{live: 900 * mib, limit: none, percent: 100}, 1 << 40, nil},
		{"where GOGC allows more", heapUse{live: 100 * mib, limit: none, percent: 600}, 1 << 40, nil},
		{"where GOGC is off", heapUse{live: 100 * mib, limit: none, percent: math.MaxUint64}, 1 << 40, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			tuner, set := recordingTuner(test.use)
			tuner.expected.Store(test.expected)
			tuner.tune()
			if got := set.gogc(); !slices.Equal(got, test.want) {
				t.Errorf("set GOGC to %v, want %v", got, test.want)
			}
		})
	}
}

// GOGC is a percentage of the live heap, so it shrinks with each collection that finds more.
func TestHeadroomDoesNotGrowWithTheHeap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tuner, set := recordingTuner(heapUse{live: 20 * mib, limit: math.MaxInt64, percent: 100})
		ctx, end := context.WithCancel(t.Context())
		go tuner.Run(ctx)
		tuner.Expect(64 * mib)
		time.Sleep(retuneEvery / 2) // between two of its looks
		for _, live := range []uint64{20, 200, 400, 600} {
			set.setLive(live * mib)
			time.Sleep(retuneEvery)
		}
		end()
		synctest.Wait()
		if want := []int{2560, 256, 128, 100}; !slices.Equal(set.gogc(), want) {
			t.Errorf("set GOGC to %v, want %v", set.gogc(), want)
		}
	})
}

func TestCollectorGetsAProcessorOfItsOwnOnASmallMachine(t *testing.T) {
	for _, test := range []struct {
		name        string
		cpus, procs int
		fixed       bool
		want        int
	}{
		{"one processor", 1, 1, false, 4},
		{"two processors", 2, 2, false, 4},
		{"four have one for the collector", 4, 4, false, 0},
		{"the program or a CPU limit has set GOMAXPROCS", 16, 2, false, 0},
		{"the environment or a CPU limit of all processors", 2, 2, true, 0},
	} {
		if got := procsFor(test.cpus, test.procs, test.fixed); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

// The runtime takes the settings: with many stacks, too, its heap may grow by the headroom and not by more.
func TestTunedIsTheRuntime(t *testing.T) {
	const goroutines = 5000
	end := make(chan struct{})
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() { <-end })
	}
	defer wg.Wait()
	defer close(end)
	runtime.GC()
	before, procs := goHeap(), runtime.GOMAXPROCS(0)
	if before.live == 0 || before.scanned == 0 || before.needed == 0 || before.limit == 0 || before.percent == 0 {
		t.Fatalf("the runtime reports %+v", before)
	}
	if before.percent > math.MaxInt32 {
		t.Skip("GOGC is off")
	}
	tuner := NewGCTuner()
	tuner.procs = func() int { return procs + 1 }
	tuner.Expect(maxHeadroom)
	tuner.tune()
	goal := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
	metrics.Read(goal)
	if room := int64(goal[0].Value.Uint64()) - int64(before.live); room < maxHeadroom*9/10 || room > maxHeadroom*11/10 {
		t.Errorf("the heap may grow by %d MiB, want about %d", room/mib, maxHeadroom/mib)
	}
	if n := runtime.GOMAXPROCS(0); n != procs+1 {
		t.Errorf("GOMAXPROCS is %d, want %d", n, procs+1)
	}
	tuner.setProcs = func(n int) {
		if n != 0 {
			t.Errorf("GOMAXPROCS is restored to %d, want the default", n)
		}
		runtime.GOMAXPROCS(procs) // which go test -cpu may have set
	}
	tuner.restore()
	if after := goHeap(); after.percent != before.percent {
		t.Errorf("GOGC is %d%%, and was %d%%", after.percent, before.percent)
	}
}

func TestCPULimitIsThatOfAnyCgroupAround(t *testing.T) {
	for _, test := range []struct {
		name   string
		member string
		files  map[string]string
		want   bool
	}{
		{"no cgroups", "", nil, false},
		{"v2 without a limit", "0::/a/b\n", map[string]string{"a/b/cpu.max": "max 100000\n"}, false},
		{"v2", "0::/a/b\n", map[string]string{"a/b/cpu.max": "50000 100000\n"}, true},
		{"v2, around it", "0::/a/b\n", map[string]string{"a/b/cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n"}, true},
		{"v1 without a limit", "3:cpu,cpuacct:/a\n", map[string]string{"cpu/a/cpu.cfs_quota_us": "-1\n"}, false},
		{"v1", "3:cpu,cpuacct:/a\n", map[string]string{"cpu/a/cpu.cfs_quota_us": "200000\n"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				name = filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("proc/self/cgroup", test.member)
			for name, text := range test.files {
				write("sys/fs/cgroup/"+name, text)
			}
			if got := CgroupLimitsCPU(root); got != test.want {
				t.Errorf("limited: %t, want %t", got, test.want)
			}
		})
	}
}

// Very many names are as much work as many bytes of responses, but leave no garbage: the heap gets no headroom, and is not
// collected.
func TestRuntimeGetsProcessorsForManyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tuner, set := recordingTuner(heapUse{live: 20 * mib, limit: math.MaxInt64, percent: 100})
		ctx, end := context.WithCancel(t.Context())
		go tuner.Run(ctx)
		want := func(procs ...int) {
			t.Helper()
			synctest.Wait()
			set.mu.Lock()
			defer set.mu.Unlock()
			if !slices.Equal(set.procs, procs) || len(set.percents) > 0 || set.collections > 0 {
				t.Fatalf("set GOMAXPROCS to %v and GOGC to %v, and collected %d times, want %v and nothing else", set.procs, set.percents, set.collections, procs)
			}
		}
		tuner.ExpectNames(leastMany/workPerName - 1)
		want()
		tuner.ExpectNames(1)
		want(ownProcessor)
		time.Sleep(3 * tunedFor)
		want(ownProcessor, 0)
		tuner.ExpectNames(leastMany / workPerName)
		want(ownProcessor, 0, ownProcessor)
		end()
		want(ownProcessor, 0, ownProcessor, 0)
	})
}
