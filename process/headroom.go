package process

import (
	"context"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

// A response with very many resources leaves much garbage while the relay stores and sends it. By default Go
// collects garbage each time the heap has doubled, so there would be many collections in a few seconds. Each
// occupies the processors for some milliseconds, and all clients wait meanwhile, also those of other authorities. Memory
// is cheaper than that, so the relay lets more garbage accumulate until such responses have been processed.

const (
	// headroomPerByte is how much more the heap may grow for each byte of a large response. Most responses
	// leave four to six times their size as garbage.
	headroomPerByte = 8
	// maxHeadroom bounds the headroom, for all large responses together.
	maxHeadroom = 512 << 20
	// limitShare is the part that may be used as headroom of what remains below the memory limit.
	limitShare = 0.5
	// headroomLasts is how long the headroom stays after the last large response: clients are still being sent
	// what was in it.
	headroomLasts = 5 * time.Second
)

// Headroom lets the heap of the process grow further than usual before Go collects garbage, while large responses
// are processed. A process has one. It changes nothing with GOGC=off, and where GOGC allows more already.
type Headroom struct {
	expected atomic.Uint64 // bytes of large responses, since the last quiet time
	wake     chan struct{}

	// For tests; otherwise those of the runtime.
	setPercent func(int)
	heap       func() heapUse

	// Of the goroutine of Run.
	base    int // the percentage without headroom, while raised
	percent int // the present one, while raised
	raised  bool
}

// heapUse is what the runtime knows of its memory, in bytes.
type heapUse struct {
	live    uint64 // as of the last collection
	total   uint64
	limit   uint64 // math.MaxInt64 without a memory limit
	percent uint64 // GOGC; math.MaxUint64 if it is off
}

// NewHeadroom returns the Headroom of the process. It does nothing before Run.
func NewHeadroom() *Headroom {
	return &Headroom{wake: make(chan struct{}, 1), setPercent: func(percent int) { debug.SetGCPercent(percent) }, heap: goHeap}
}

// Expect announces that a response of that many bytes will be processed. It does not block, and may be called
// concurrently.
func (h *Headroom) Expect(bytes int) {
	h.expected.Add(uint64(bytes))
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Run adapts the garbage collector to what Expect announces, until ctx ends. Then the collector works as before.
func (h *Headroom) Run(ctx context.Context) {
	quiet := time.NewTimer(headroomLasts)
	defer quiet.Stop()
	defer h.lower()
	for {
		select {
		case <-h.wake:
			h.raise()
			quiet.Reset(headroomLasts)
		case <-quiet.C:
			h.lower()
		case <-ctx.Done():
			return
		}
	}
}

// raise gives the heap the headroom for all that is expected.
func (h *Headroom) raise() {
	use := h.heap()
	if !h.raised {
		if use.percent > math.MaxInt32 { // off
			return
		}
		h.base, h.percent = int(use.percent), int(use.percent)
	}
	percent := max(h.base, use.percentFor(h.expected.Load()))
	// Each change stops all goroutines for a moment.
	if percent*4 <= h.percent*5 && percent*5 >= h.percent*4 {
		return
	}
	h.raised, h.percent = true, percent
	h.setPercent(percent)
}

// percentFor returns the percentage with which the heap may grow by the headroom for that many bytes.
func (u heapUse) percentFor(expected uint64) int {
	const leastHeap = 4 << 20 // below which Go does not collect
	room := min(expected*headroomPerByte, maxHeadroom)
	if u.limit < math.MaxInt64 {
		room = min(room, uint64(limitShare*float64(u.limit-min(u.limit, u.total))))
	}
	return int(room * 100 / max(u.live, leastHeap))
}

// lower takes the headroom back. Go collects the garbage soon after that.
func (h *Headroom) lower() {
	h.expected.Store(0)
	if h.raised {
		h.raised = false
		h.setPercent(h.base)
	}
}

// goHeap returns what the runtime knows of its memory.
func goHeap() heapUse {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/gomemlimit:bytes"}, {Name: "/gc/gogc:percent"},
	}
	metrics.Read(s)
	at := func(i int) uint64 { return s[i].Value.Uint64() }
	return heapUse{live: at(0), total: at(1) - at(2), limit: at(3), percent: at(4)}
}
