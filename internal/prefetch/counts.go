package prefetch

import "sync/atomic"

// counts are the counters for metrics.
type counts struct {
	ahead                      atomic.Int64
	begun, requested, released atomic.Uint64
	refused                    [nRefusals]atomic.Uint64
}

// refusal is a bound because of which names are left to the clients.
type refusal uint8

const (
	overScope refusal = iota
	overAll
	overResource
	overLevels
	nRefusals
)

var refusals = [nRefusals]string{"scope", "relay", "resource", "levels"}

// Stats has current numbers, and counts since the start.
type Stats struct {
	// Ahead is the number of topics that the relay watches and no client has requested.
	Ahead int
	// Begun counts the topics that the relay watched before a client did. Requested counts those of them that a
	// client has requested since, and Released those that no client requested in time.
	Begun, Requested, Released uint64
	// Refused counts how often each bound was reached.
	Refused map[string]uint64
}

// Stats returns the current statistics.
func (p *Prefetcher) Stats() Stats {
	s := Stats{
		Ahead: int(p.counts.ahead.Load()), Begun: p.counts.begun.Load(), Requested: p.counts.requested.Load(), Released: p.counts.released.Load(),
		Refused: map[string]uint64{},
	}
	for i, name := range refusals {
		s.Refused[name] = p.counts.refused[i].Load()
	}
	return s
}
