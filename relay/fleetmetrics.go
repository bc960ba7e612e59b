package relay

// What the relay reads of its fleet: for its status, and for metrics.

import (
	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/operator"
)

// fleetStatus returns the relay's fleet, nil if it is in none.
func (r *Relay) fleetStatus() *operator.FleetStatus {
	m := r.fleet.Load()
	if m == nil {
		return nil
	}
	known := m.Status()
	s := &operator.FleetStatus{Name: known.Name, Alone: known.Alone, Problem: known.Problem, Members: []operator.FleetMember{}}
	for _, member := range known.Members {
		s.Members = append(s.Members, operator.FleetMember{Address: member.Address, Self: member.Self, Reachable: member.Up, Reason: member.Reason})
	}
	s.OwnedScopes, s.PeerScopes = r.scopes.owned()
	return s
}

// owned counts the scopes that come from the authorities' servers, and from other members of the fleet.
func (f *scopes) owned() (own, peers int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, of := range f.sources {
		switch s, _ := of.source.(*serverSource); {
		case s == nil: // from a directory, or being replaced
		case s.from == nil:
			own++
		default:
			peers++
		}
	}
	return own, peers
}

// fleetInstruments are the metrics of fleets.
func (r *Relay) fleetInstruments() []instrument {
	of := func(read func(fleet.Status) int) func() []admin.Sample {
		return one(func() int {
			if m := r.fleet.Load(); m != nil {
				return read(m.Status())
			}
			return 0
		})
	}
	scopes := func(read func(own, peers int) int) func() []admin.Sample {
		return one(func() int {
			if r.fleet.Load() == nil {
				return 0
			}
			return read(r.scopes.owned())
		})
	}
	return []instrument{
		{r.metrics.Gauge, "xds_relay.fleet.members", "Members of the fleet that answer, with the relay itself.", of(func(s fleet.Status) (n int) {
			for _, m := range s.Members {
				if m.Up {
					n++
				}
			}
			return n
		})},
		{r.metrics.Gauge, "xds_relay.fleet.owned_scopes", "Scopes in use that the relay gets from the authorities' servers.",
			scopes(func(own, _ int) int { return own })},
		{r.metrics.Gauge, "xds_relay.fleet.peer_scopes", "Scopes in use that the relay gets from other members of the fleet.",
			scopes(func(_, peers int) int { return peers })},
		{r.metrics.Counter, "xds_relay.fleet.handovers", "Times that a scope in use began to come from another relay or from the authority's servers instead, because members came or went.",
			one(r.scopes.handovers.Load)},
		{r.metrics.Gauge, "xds_relay.fleet.alone", "1 while the relay has not learnt who the members of its fleet are, otherwise 0.", of(func(s fleet.Status) int {
			if s.Alone {
				return 1
			}
			return 0
		})},
	}
}
