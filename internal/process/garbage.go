package process

import (
	"context"
	"runtime"
	"runtime/metrics"
	"time"
)

// Go collects garbage when the heap has doubled, or after two minutes. When many clients
// leave, nothing is allocated, so their memory would stay for long. The relay therefore
// starts a collection itself if Go has not.

const (
	checkEvery = 5 * time.Second
	// collectAfter is how long Go may take. It also bounds the cost: at most one collection
	// in that time, and only while streams end or topics are given up.
	collectAfter = 20 * time.Second
	// settled is how long after an end some memory is still referenced because of it:
	// upstream remembers what it unsubscribed from for as long as a response may take.
	settled = 25 * time.Second
	// busyPart is the part of the heap's room until the next collection that is allocated between two looks while the
	// process is busy, for example because clients reconnect. Then Go will collect soon by itself, and one more
	// collection would only delay the clients.
	busyPart = 10
)

// CollectGarbage runs until ctx ends. ended returns how many streams and topics have ended so far and left garbage. It may
// be called concurrently.
func CollectGarbage(ctx context.Context, ended func() uint64) {
	c := collector{ended: ended, cycles: gcCycles, allocated: goAllocated, collect: runtime.GC}
	c.last = time.Now()
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.tick(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// collector decides when to collect.
type collector struct {
	ended  func() uint64 // streams and topics that ended, in total
	cycles func() uint64 // collections, in total
	// allocated returns the bytes allocated in total, and how many may be allocated between two collections.
	allocated func() (total, room uint64)
	collect   func()

	last      time.Time // when the newest collection was seen
	lastCycle uint64
	lastEnded uint64
	lastTotal uint64    // of allocated
	changed   time.Time // when lastEnded changed
	due       bool      // no collection has started since `settled` after changed
}

func (c *collector) tick(now time.Time) {
	total, room := c.allocated()
	busy := total-c.lastTotal > room/busyPart
	c.lastTotal = total
	if ended := c.ended(); ended != c.lastEnded {
		c.lastEnded, c.changed, c.due = ended, now, true
	}
	if cycle := c.cycles(); cycle != c.lastCycle {
		// It may have started before the last stream ended, so c.due stays.
		c.last, c.lastCycle = now, cycle
		return
	}
	if busy || !c.due || now.Sub(c.last) < collectAfter {
		return
	}
	c.collect()
	c.last, c.lastCycle, c.due = now, c.cycles(), now.Sub(c.changed) < settled
}

// goAllocated returns the bytes allocated since the process began, and how many Go allocates between two collections.
func goAllocated() (total, room uint64) {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/goal:bytes"}}
	metrics.Read(sample)
	live, goal := sample[1].Value.Uint64(), sample[2].Value.Uint64()
	return sample[0].Value.Uint64(), goal - min(goal, live)
}

// gcCycles returns the number of collections since the process began.
func gcCycles() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
