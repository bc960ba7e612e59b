package prefetch

import "sync/atomic"

// counts are for the metrics.
type counts struct {
	ahead                      atomic.Int64
	begun, requested, released atomic.Uint64
	refused                    [nRefusals]atomic.Uint64
}

// refusal is a bound for which names are left to the clients.
type refusal uint8

const (
	overScope refusal = iota
	overAll
	overResource
	overLevels
	nRefusals
)

var refusals = [nRefusals]string{"scope", "relay", "resource", "levels"}

// Stats are what there is at one moment, and what there was since the start.
type Stats struct {
	// Ahead is the number of topics that are watched and that no client has requested.
	Ahead int
	// Begun counts those that were watched before a client did, Requested those of them that a client has
	// requested then, and Released those that no client has.
	Begun, Requested, Released uint64
	// Refused counts how often a bound was met.
	Refused map[string]uint64
}

// Stats returns the counts.
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
