package process

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// What is in use is needed, and garbage is not.
func TestHeapIsWhatTheProcessNeeds(t *testing.T) {
	const machine, most = 1000 << 20, 300 << 20
	h := newHeap(memlimit.Limit(machine))
	needs := func() (needed, collection, limit uint64) {
		runtime.GC()
		h.sampled = time.Time{}
		return h.Needed()
	}
	before, was, limit := needs()
	if limit != machine*9/10 {
		t.Errorf("the process may have %d MiB without Go's limit, want 900", limit>>20)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(most))
	const size = 64 << 20
	b := make([]byte, size)
	with, is, limit := needs()
	if with < before+size*9/10 || with > before+size*3/2 {
		t.Errorf("the process needs %d MiB, and %d MiB with another %d MiB", before>>20, with>>20, size>>20)
	}
	if is <= was || limit != most {
		t.Errorf("collection %d after %d, and a limit of %d MiB, want 300", is, was, limit>>20)
	}
	runtime.KeepAlive(b)
	if after, _, _ := needs(); after > before+size/4 {
		t.Errorf("garbage counts: the process needs %d MiB, and needed %d MiB before", after>>20, before>>20)
	}
}
