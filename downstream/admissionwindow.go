package downstream

import (
	"cmp"
	"runtime"
	"runtime/metrics"
	"time"
)

// window is how many places a line has. It begins with few for each processor, which are enough to keep the processors
// busy if all streams with places have work. While streams are in line and processors are idle, it grows: then the
// streams with places wait for others. It shrinks when goroutines wait for processors. The zero value is a window at its
// beginning.
type window struct {
	size     int           // 0 at the beginning
	adjusted time.Duration // by uptime; 0 at the beginning
	// waits returns for how long one goroutine in ten, at least, has waited for a processor since the last call.
	waits func() time.Duration
}

// These are numbers of places for each processor.
const (
	windowLeast = 16
	windowMost  = 1024
)

const (
	// windowTime is the time between two changes of a window.
	windowTime = 5 * time.Millisecond
	// windowWait is for how long goroutines wait in a process with no idle processors.
	windowWait = 2 * time.Millisecond
)

// places returns how many there may be.
func (w *window) places() int { return cmp.Or(w.size, windowLeast*runtime.GOMAXPROCS(0)) }

// adjust changes the window of a line in which streams wait, if its time has come. working is the number of places.
func (w *window) adjust(now time.Duration, working int) {
	first := w.adjusted == 0
	if !first && now-w.adjusted < windowTime {
		return
	}
	w.adjusted = now
	if w.waits == nil {
		w.waits = new(goroutineWaits).take
	}
	wait, size := w.waits(), w.places()
	switch {
	case first: // wait is of the time before
	case wait > windowWait:
		w.size = max(windowLeast*runtime.GOMAXPROCS(0), size-size/4)
	case working >= size:
		w.size = min(windowMost*runtime.GOMAXPROCS(0), size+size/4)
	}
}

// goroutineWaits are the times for which goroutines of the process wait for a processor.
type goroutineWaits struct {
	sample [1]metrics.Sample
	before []uint64 // counts at the last call
}

// take returns the time that a tenth of the goroutines have waited for at least, since the last call.
func (g *goroutineWaits) take() time.Duration {
	g.sample[0].Name = "/sched/latencies:seconds"
	metrics.Read(g.sample[:])
	if g.sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return 0
	}
	h := g.sample[0].Value.Float64Histogram()
	if g.before == nil {
		g.before = make([]uint64, len(h.Counts))
	}
	total := uint64(0)
	for i, n := range h.Counts {
		total += n - g.before[i]
	}
	wait, longer := 0.0, uint64(0)
	for i := len(h.Counts) - 1; i >= 0; i-- {
		longer += h.Counts[i] - g.before[i]
		if longer > total/10 {
			wait = h.Buckets[i] // the bucket's least
			break
		}
	}
	copy(g.before, h.Counts)
	return time.Duration(max(wait, 0) * float64(time.Second))
}
