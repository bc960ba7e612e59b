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
//
// A client that subscribes to very many names keeps a processor busy, too: with the names, and then with their resources.
// While both of two processors work, Go looks for what has come from the network every 10 ms. With four, one is idle, and
// the kernel wakes it. So the runtime gets four for such a client, too.

const (
	// leastMany is from how much work on the collector gets a processor: in at most twice tunedFor. It keeps it while half
	// of that comes in each tunedFor. A byte of a large response counts 1.
	leastMany = 16 << 20
	// workPerName is what the resource of a name counts, of the very many to which a client has subscribed: two kinds of
	// work, with the name and with the resource, which has a few KB.
	workPerName = 4 << 10
	// headroomPerByte is how much more the heap may grow for each byte of a large response. Most responses
	// leave four to six times their size as garbage.
	headroomPerByte = 8
	// maxHeadroom bounds the headroom, for all large responses together.
	maxHeadroom = 512 << 20
	// limitShare is the part that may be used as headroom of what remains below the memory limit.
	limitShare = 0.5
	// tunedFor is how long the heap keeps the headroom for a large response, and up to twice as long: the relay is
	// still sending its resources to clients.
	tunedFor = 5 * time.Second
	// retuneEvery is how often GOGC follows the live heap, of which it is a percentage.
	retuneEvery = 100 * time.Millisecond
	// ownProcessor is the number of processors with which one works for the collector only. The runtime uses a
	// quarter of the processors for collections.
	ownProcessor = 4
)

// GCTuner tunes Go's runtime while large responses, or very many names, are processed, so that clients wait less for that. A
// process has one. It leaves GOGC alone if that is off or allows more already, and GOMAXPROCS if the environment sets it
// or the process has a CPU limit.
type GCTuner struct {
	expected atomic.Uint64 // bytes of large responses, in the present period of tunedFor
	names    atomic.Uint64 // that ExpectNames has announced, in the present period of tunedFor
	wake     chan struct{}

	// Tests replace these functions of the runtime.
	setPercent func(int)
	heap       func() heapUse
	collect    func()
	procs      func() int // GOMAXPROCS while tuned; 0 to leave it alone
	setProcs   func(int)  // 0: the default

	// Only the goroutine of Run uses these.
	previous      uint64 // bytes of large responses, in the period before
	previousNames uint64
	tuned         bool
	many          bool // the work of leastMany has come
	base          int  // GOGC when the runtime is not tuned; -1 if it is off
	percent       int  // GOGC now
	procsSet      bool // GOMAXPROCS is not the default
}

// heapUse is what the runtime reports of its memory, in bytes.
type heapUse struct {
	live    uint64 // as of the last collection
	scanned uint64 // stacks and globals, of which GOGC is a percentage, too
	needed  uint64 // all memory of the process, without garbage and without what is free
	limit   uint64 // math.MaxInt64 without a memory limit
	percent uint64 // GOGC; math.MaxUint64 if it is off
}

// NewGCTuner returns the GCTuner of the process. It does nothing before Run.
func NewGCTuner() *GCTuner {
	return &GCTuner{
		wake:       make(chan struct{}, 1),
		setPercent: func(percent int) { debug.SetGCPercent(percent) },
		heap:       goHeap,
		collect:    runtime.GC,
		procs: func() int {
			return procsFor(runtime.NumCPU(), runtime.GOMAXPROCS(0), os.Getenv("GOMAXPROCS") != "" || CgroupLimitsCPU("/"))
		},
		setProcs: setProcs,
	}
}

// Expect announces that a response of that many bytes will be processed. It does not block, and may be called
// concurrently.
func (t *GCTuner) Expect(bytes int) {
	t.expected.Add(uint64(bytes))
	t.notify()
}

// ExpectNames announces the resources of that many names, to which a client has just subscribed. It does not block, and
// may be called concurrently.
func (t *GCTuner) ExpectNames(n int) {
	t.names.Add(uint64(n))
	t.notify()
}

func (t *GCTuner) notify() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Run tunes the runtime for what Expect and ExpectNames announce, until ctx ends. Then the runtime is as it was before.
func (t *GCTuner) Run(ctx context.Context) {
	defer t.restore()
	ticker := time.NewTicker(retuneEvery)
	defer ticker.Stop()
	ticker.Stop()
	idle := true
	var since time.Time // the begin of the present period
	for {
		select {
		case <-t.wake:
			if idle {
				idle, since = false, time.Now()
				ticker.Reset(retuneEvery)
			}
			t.tune()
		case now := <-ticker.C:
			if now.Sub(since) < tunedFor {
				t.tune()
				continue
			}
			t.previous, since = t.expected.Swap(0), now
			t.previousNames = t.names.Swap(0)
			if t.many && work(t.previous, t.previousNames) < leastMany/2 {
				if t.percent != t.base {
					t.collect() // it would come soon anyway, and delays clients less now
				}
				t.endMany()
			}
			if t.previous+t.previousNames > 0 {
				t.tune()
				continue
			}
			t.restore()
			idle = true
			ticker.Stop()
		case <-ctx.Done():
			return
		}
	}
}

// tune prepares the runtime for all responses that are expected.
func (t *GCTuner) tune() {
	expected := t.previous + t.expected.Load()
	use := t.heap()
	if !t.tuned {
		t.tuned, t.base = true, -1
		if use.percent <= math.MaxInt32 {
			t.base = int(use.percent)
		}
		t.percent = t.base
	}
	if t.base >= 0 {
		t.setGOGC(max(t.base, use.percentFor(expected)))
	}
	if t.many || work(expected, t.previousNames+t.names.Load()) < leastMany {
		return
	}
	t.many = true
	// This waits for the end of a collection, so GOGC comes before it.
	if n := t.procs(); n > 0 {
		t.procsSet = true
		t.setProcs(n)
	}
}

// work is how much work these responses and names are, compared with leastMany.
func work(bytes, names uint64) uint64 { return bytes + workPerName*names }

// endMany returns GOMAXPROCS to what it was.
func (t *GCTuner) endMany() {
	if t.procsSet {
		t.setProcs(0)
	}
	t.many, t.procsSet = false, false
}

func (t *GCTuner) setGOGC(percent int) {
	if percent != t.percent {
		t.percent = percent
		t.setPercent(percent)
	}
}

// percentFor returns the GOGC with which the heap may grow by the headroom for that many bytes of responses.
func (u heapUse) percentFor(expected uint64) int {
	const leastHeap = 4 << 20 // below which Go does not collect
	room := min(expected*headroomPerByte, maxHeadroom)
	if u.limit < math.MaxInt64 {
		room = min(room, uint64(limitShare*float64(u.limit-min(u.limit, u.needed))))
	}
	return int(room * 100 / max(u.live+u.scanned, leastHeap))
}

// procsFor returns the GOMAXPROCS with which one processor works for the collector only, or 0 if it is to stay as it is:
// fixed, or large enough. With more than the machine has, the kernel shares the time of its processors. A process with a
// CPU limit keeps its value: the kernel would stop it when it used more at once.
func procsFor(cpus, procs int, fixed bool) int {
	if fixed || procs != cpus || procs >= ownProcessor {
		return 0
	}
	return ownProcessor
}

// restore returns the runtime to what it was before tune.
func (t *GCTuner) restore() {
	if !t.tuned {
		return
	}
	t.setGOGC(t.base)
	t.endMany()
	t.tuned = false
}

// setProcs sets GOMAXPROCS, or has the runtime use its default again.
func setProcs(n int) {
	if n > 0 {
		runtime.GOMAXPROCS(n)
	} else {
		runtime.SetDefaultGOMAXPROCS()
	}
}

// goHeap returns what the runtime reports of its memory.
func goHeap() heapUse {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/gomemlimit:bytes"}, {Name: "/gc/gogc:percent"},
	}
	metrics.Read(s)
	value := func(i int) uint64 { return s[i].Value.Uint64() }
	used := value(3) - value(4)
	return heapUse{live: value(0), scanned: value(1) + value(2), needed: used - min(used, goGarbage()), limit: value(5), percent: value(6)}
}
