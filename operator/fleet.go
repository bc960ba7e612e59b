package operator

import (
	"cmp"
	"time"
)

// The fleet, as the operator sees it.

// FleetStatus is the relay's fleet in a RelayStatus.
type FleetStatus struct {
	Name string `json:"name"`
	// Alone: the relay has not learnt yet who the members are. Problem is why it cannot read the list now, "" if it can.
	Alone   bool          `json:"alone"`
	Problem string        `json:"problem,omitempty"`
	Members []FleetMember `json:"members"`
	// OwnedScopes counts the scopes in use that the relay gets from the authorities' servers, PeerScopes those from other
	// members.
	OwnedScopes int `json:"owned_scopes"`
	PeerScopes  int `json:"peer_scopes"`
}

// FleetMember is a member of a fleet.
type FleetMember struct {
	Address string `json:"address"`
	// Self: it is the relay that says so.
	Self bool `json:"self,omitempty"`
	// Reachable: it answers. Reason is why it does not.
	Reachable bool   `json:"reachable"`
	Reason    string `json:"reason,omitempty"`
}

// problemsOfFleet adds what is wrong with the fleet: nothing that a client notices.
func problemsOfFleet(p *problems, s *FleetStatus) {
	if s == nil {
		return
	}
	const page = "/ui#configuration"
	switch {
	case s.Problem != "" && s.Alone:
		p.add(SeverityWarning, time.Time{}, page, "the relay works alone, because it cannot look up the members of the fleet %q: %s", s.Name, s.Problem)
	case s.Problem != "":
		p.add(SeverityWarning, time.Time{}, page, "the members of the fleet %q cannot be looked up, and stay as they were: %s", s.Name, s.Problem)
	case s.Alone:
		p.add(SeverityWarning, time.Time{}, page, "the relay works alone: it does not know the members of the fleet %q yet", s.Name)
	}
	var lost []FleetMember
	for _, m := range s.Members {
		if !m.Reachable {
			lost = append(lost, m)
		}
	}
	few(p, lost, func(m FleetMember) {
		p.add(SeverityWarning, time.Time{}, page, "the member %s of the fleet %q does not answer: %s", m.Address, s.Name, cmp.Or(m.Reason, "it has not been reached yet"))
	})
}
