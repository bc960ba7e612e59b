package main

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
	collectEvery = 10 * time.Second
	// collectAfter is how long Go may take. It bounds what this costs: one collection in
	// that time, and only while streams end.
	collectAfter = 20 * time.Second
)

// collectGarbage runs until ctx ends.
func (r *relay) collectGarbage(ctx context.Context) {
	c := collector{ended: func() uint64 { return r.server.Stats().Ended }, cycles: gcCycles, collect: runtime.GC}
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
	ended   func() uint64 // streams, ever
	cycles  func() uint64 // collections, ever
	collect func()

	last      time.Time // when the newest collection was seen
	lastCycle uint64
	lastEnded uint64 // how many streams had ended by then
}

func (c *collector) tick(now time.Time) {
	ended := c.ended()
	if cycle := c.cycles(); cycle != c.lastCycle {
		// It may have begun before the last of them ended.
		c.last, c.lastCycle = now, cycle
		return
	}
	if ended == c.lastEnded || now.Sub(c.last) < collectAfter {
		return
	}
	c.collect()
	c.last, c.lastCycle, c.lastEnded = now, c.cycles(), ended
}

// gcCycles returns how many collections there have been.
func gcCycles() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
