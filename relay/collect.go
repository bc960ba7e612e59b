package relay

import (
	"context"
	"runtime"
	"runtime/metrics"
	"time"
)

// Go collects garbage when as much has been allocated as was live, or after two minutes.
// When clients have left, nothing is allocated, and what they held would stay for long. So
// the relay collects it itself, if Go has not.

const (
	collectEvery = 5 * time.Second
	// collectAfter is how long Go may take. It bounds what this costs: one collection in
	// that time, and only while streams end, or topics that nobody watches any more.
	collectAfter = 20 * time.Second
	// settled is how long after that something is still held on their account: upstream,
	// what was given up is remembered for the time that an answer may take.
	settled = 25 * time.Second
)

// collectGarbage runs until ctx ends.
func (r *Relay) collectGarbage(ctx context.Context) {
	ended := func() uint64 { return r.server.Stats().Ended + r.cache.Stats().GivenUp }
	c := collector{ended: ended, cycles: gcCycles, collect: runtime.GC}
	c.last = time.Now()
	ticker := time.NewTicker(collectEvery)
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
	ended   func() uint64 // streams and topics, ever
	cycles  func() uint64 // collections, ever
	collect func()

	last      time.Time // when the newest collection was seen
	lastCycle uint64
	lastEnded uint64
	changed   time.Time // when more had last ended
	due       bool      // no collection has begun since that has settled
}

func (c *collector) tick(now time.Time) {
	if ended := c.ended(); ended != c.lastEnded {
		c.lastEnded, c.changed, c.due = ended, now, true
	}
	if cycle := c.cycles(); cycle != c.lastCycle {
		// It may have begun before the last of them ended.
		c.last, c.lastCycle = now, cycle
		return
	}
	if !c.due || now.Sub(c.last) < collectAfter {
		return
	}
	c.collect()
	c.last, c.lastCycle, c.due = now, c.cycles(), now.Sub(c.changed) < settled
}

// gcCycles returns how many collections there have been.
func gcCycles() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
