package process

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

// A response with very many resources leaves much garbage while the relay stores and sends it. By default Go collects
// garbage each time the heap has doubled, so there are many collections in a few seconds. Clients of all authorities wait
// for two reasons:
//
//   - A collection needs processor time. The relay gives the heap headroom instead: memory is cheaper.
//   - With less than four processors the collector has none of its own. It takes parts of the time of each, and
//     goroutines in that processor's queue wait for as long as that takes: a quarter of the whole collection at worst.
//     With four, one works for the collector only. So the runtime gets four, and the kernel shares the time of the
//     machine's processors between them.

const (
	// headroomPerByte is how much more the heap may grow for each byte of a large response. Most responses
	// leave four to six times their size as garbage.
	headroomPerByte = 8
	// maxHeadroom bounds the headroom, for all large responses together.
	maxHeadroom = 512 << 20
	// limitShare is the part that may be used as headroom of what remains below the memory limit.
	limitShare = 0.5
	// tunedFor is how long the runtime stays tuned after the last large response: the relay is still sending its
	// resources to clients.
	tunedFor = 5 * time.Second
	// ownProcessor is the number of processors with which one works for the collector only. The runtime uses a
	// quarter of the processors for collections.
	ownProcessor = 4
)

// GCTuner tunes Go's runtime while large responses are processed, so that garbage collections delay clients less. A
// process has one. It leaves GOGC alone if that is off or allows more already, and GOMAXPROCS if the environment sets it
// or the process has a CPU limit.
type GCTuner struct {
	expected atomic.Uint64 // bytes of large responses, since the runtime was tuned
	wake     chan struct{}

	// For tests; otherwise those of the runtime.
	setPercent func(int)
	heap       func() heapUse
	setProcs   func(int) // 0: the default

	// Only the goroutine of Run uses these.
	tuned   bool
	base    int // GOGC when the runtime is not tuned; -1 if it is off
	percent int // GOGC now
}

// heapUse is what the runtime reports of its memory, in bytes.
type heapUse struct {
	live    uint64 // as of the last collection
	total   uint64
	limit   uint64 // math.MaxInt64 without a memory limit
	percent uint64 // GOGC; math.MaxUint64 if it is off
}

// NewGCTuner returns the GCTuner of the process. It does nothing before Run.
func NewGCTuner() *GCTuner {
	return &GCTuner{
		wake:       make(chan struct{}, 1),
		setPercent: func(percent int) { debug.SetGCPercent(percent) },
		heap:       goHeap,
		setProcs:   setProcs,
	}
}

// Expect announces that a response of that many bytes will be processed. It does not block, and may be called
// concurrently.
func (t *GCTuner) Expect(bytes int) {
	t.expected.Add(uint64(bytes))
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Run tunes the runtime for the responses that Expect announces, until ctx ends. Then the runtime is as it was before.
func (t *GCTuner) Run(ctx context.Context) {
	quiet := time.NewTimer(tunedFor)
	defer quiet.Stop()
	defer t.restore()
	for {
		select {
		case <-t.wake:
			t.tune()
			quiet.Reset(tunedFor)
		case <-quiet.C:
			t.restore()
		case <-ctx.Done():
			return
		}
	}
}

// tune prepares the runtime for all responses that are expected.
func (t *GCTuner) tune() {
	use := t.heap()
	if !t.tuned {
		t.tuned, t.base = true, -1
		if use.percent <= math.MaxInt32 {
			t.base = int(use.percent)
		}
		t.percent = t.base
		t.setProcs(procsFor(runtime.NumCPU(), runtime.GOMAXPROCS(0), os.Getenv("GOMAXPROCS")))
	}
	if t.base < 0 {
		return
	}
	percent := max(t.base, use.percentFor(t.expected.Load()))
	// Each change stops all goroutines for a moment, so small ones are not worth it.
	if percent*4 <= t.percent*5 && percent*5 >= t.percent*4 {
		return
	}
	t.percent = percent
	t.setPercent(percent)
}

// percentFor returns the GOGC with which the heap may grow by the headroom for that many bytes of responses.
func (u heapUse) percentFor(expected uint64) int {
	const leastHeap = 4 << 20 // below which Go does not collect
	room := min(expected*headroomPerByte, maxHeadroom)
	if u.limit < math.MaxInt64 {
		room = min(room, uint64(limitShare*float64(u.limit-min(u.limit, u.total))))
	}
	return int(room * 100 / max(u.live, leastHeap))
}

// procsFor returns the GOMAXPROCS with which one processor works for the collector only, or 0 if it is to stay. With
// more than the machine has, the kernel shares the time of its processors. A process with a CPU limit has less than the
// machine: the kernel would stop it when it used more at once.
func procsFor(cpus, procs int, env string) int {
	if env != "" || procs != cpus || procs >= ownProcessor {
		return 0
	}
	return ownProcessor
}

// restore returns the runtime to what it was before tune. Go collects the garbage soon after that.
func (t *GCTuner) restore() {
	t.expected.Store(0)
	if !t.tuned {
		return
	}
	t.tuned = false
	t.setProcs(0)
	if t.percent != t.base {
		t.setPercent(t.base)
	}
}

// setProcs sets GOMAXPROCS, or has the runtime use its default again. It leaves a value from the environment alone.
func setProcs(n int) {
	switch {
	case n > 0:
		runtime.GOMAXPROCS(n)
	case os.Getenv("GOMAXPROCS") == "":
		runtime.SetDefaultGOMAXPROCS()
	}
}

// goHeap returns what the runtime reports of its memory.
func goHeap() heapUse {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/gomemlimit:bytes"}, {Name: "/gc/gogc:percent"},
	}
	metrics.Read(s)
	at := func(i int) uint64 { return s[i].Value.Uint64() }
	return heapUse{live: at(0), total: at(1) - at(2), limit: at(3), percent: at(4)}
}
