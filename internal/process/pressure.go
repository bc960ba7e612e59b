package process

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// Memory says how much of its container's memory the process needs. What Go can free by itself does
// not count: under a memory limit garbage may well fill most of a container that has no problem.
// Its methods may be called concurrently.
type Memory struct {
	container func() Usage
	garbage   func() uint64 // that Go has not freed yet, as of the last collection
	collect   func()

	mu        sync.Mutex
	sampled   time.Time
	usage     Usage
	needed    uint64 // of usage.Used
	collected time.Time
}

// Usage is that of a container, in bytes.
type Usage struct {
	Used  uint64 // without files that the kernel can drop
	Limit uint64 // 0 without a limit
}

const (
	// sampleEvery is how old what is known of the memory may be.
	sampleEvery = 100 * time.Millisecond
	// collectEvery is how often the garbage is collected at most to find out how much there is.
	collectEvery = 5 * time.Second
)

// NewMemory returns the Memory of a process in a container.
func NewMemory(container func() Usage) *Memory {
	return &Memory{container: container, garbage: goGarbage, collect: runtime.GC}
}

// Above reports whether the process needs more than a part of its container's limit. It may be called
// often: it looks every 100 ms at most.
func (m *Memory) Above(share float64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); now.Sub(m.sampled) >= sampleEvery {
		m.sampled, m.usage = now, m.container()
		m.needed = m.usage.Used - min(m.usage.Used, m.garbage())
	}
	if m.usage.Limit == 0 {
		return false
	}
	limit := uint64(share * float64(m.usage.Limit))
	if m.usage.Used < limit {
		return false
	}
	// Since the last collection much may have become live, or garbage.
	if now := time.Now(); now.Sub(m.collected) >= collectEvery {
		m.collected = now
		go m.collect()
	}
	return m.needed >= limit
}

// goGarbage returns what Go could free or reuse.
func goGarbage() uint64 {
	s := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	objects, live, free := s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64()
	return objects - min(objects, live) + free
}
