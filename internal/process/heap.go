package process

import (
	"math"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Heap says how much memory the process needs, and how much it may have. Its methods may be called concurrently.
type Heap struct {
	machine uint64 // how much the process may have if Go has no limit, 0 if that is not known

	mu      sync.Mutex
	sampled time.Time
	newest  heapSample
}

type heapSample struct{ needed, collection, limit uint64 }

// heapEvery is how old what is known of the heap may be.
const heapEvery = 10 * time.Millisecond

// NewHeap returns the Heap of the process.
func NewHeap() *Heap { return newHeap(memlimit.FromSystem) }

func newHeap(machine memlimit.Provider) *Heap {
	memory, _ := machine() // an error means that it is not known
	return &Heap{machine: uint64(memoryRatio * float64(memory))}
}

// Needed returns how much the process needs: without garbage, as of the last collection, and without what Go could
// reuse. It also returns the number of that collection, and how much the process may have: Go's memory limit or,
// without one, a share of the machine's memory. A limit of 0 is not known.
func (h *Heap) Needed() (needed, collection, limit uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); now.Sub(h.sampled) >= heapEvery {
		h.sampled, h.newest = now, h.sample()
	}
	return h.newest.needed, h.newest.collection, h.newest.limit
}

func (h *Heap) sample() heapSample {
	s := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/gomemlimit:bytes"},
	}
	metrics.Read(s)
	total, released, garbage := s[0].Value.Uint64(), s[1].Value.Uint64(), goGarbage()
	limit := s[3].Value.Uint64()
	if limit == math.MaxInt64 {
		limit = h.machine
	}
	return heapSample{total - min(total, released+garbage), s[2].Value.Uint64(), limit}
}
