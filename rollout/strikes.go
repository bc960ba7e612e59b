package rollout

import (
	"cmp"
	"slices"
)

// This file limits what one identity or address can do to rollouts. An attacker can open many connections with many
// node ids, and reject changes or close streams on purpose. So the rejections and deaths of clients that share an
// identity or address count once, unless most clients share it, as where all use the same certificate. An identity or
// address that alone has stopped several rollouts is passed over, however many clients it has: only others, of which
// one party does not have several, speak for a change that it rejects.

const (
	// maxStrikes is how many rollouts an identity or address may stop alone before it is passed over.
	maxStrikes = 3
	// maxStruck bounds the number of strikes that are remembered. Each stands for an identity or address that has
	// stopped a rollout.
	maxStruck = 256
	// manyOthers is how many other identities or addresses outweigh one that most clients share.
	manyOthers = 3
)

// strike counts the rollouts that an identity or address alone has stopped.
type strike struct {
	who string
	n   int
}

// countWho adds n to the counts of a present client's who.
func (m *Machine) countWho(c *client, n int) {
	if !c.present {
		return
	}
	m.total += n
	if m.whos[c.who] += n; m.whos[c.who] == 0 {
		delete(m.whos, c.who)
	}
}

// isMost reports whether most clients share this identity or address.
func (m *Machine) isMost(who string) bool {
	const half = 2
	return half*m.whos[who] > m.total
}

// isFleet reports whether most clients share this identity or address, and there are hardly any others: it stands for all
// clients, and is not passed over.
func (m *Machine) isFleet(who string) bool { return m.isMost(who) && len(m.whos) <= manyOthers }

// passedOver reports whether an identity or address alone has stopped too many rollouts.
func (m *Machine) passedOver(who string) bool {
	return slices.ContainsFunc(m.strikes, func(s strike) bool { return s.who == who && s.n >= maxStrikes })
}

// Trust makes the rejections of all that are passed over count again. It returns how many were passed over.
func (m *Machine) Trust(Time) (n int) {
	for _, s := range m.strikes {
		if s.n >= maxStrikes {
			n++
		}
	}
	m.strikes, m.undecided = nil, true
	return n
}

// party is an identity or address with a rejection or a death of a client.
type party struct {
	who, cohort string
	c           *client
	// relayed: the party is behind the client, a relay, which has so many others.
	relayed bool
	others  int
}

// rejected returns the parties that have rejected the change.
func (m *Machine) rejected() (all []party) {
	for _, r := range m.rejections {
		c := m.clients[r.Client]
		switch {
		case c == nil:
		case len(r.By.Whos) == 0:
			all = append(all, party{who: c.who, cohort: c.cohort, c: c})
		default:
			for _, is := range r.By.Whos {
				all = append(all, party{is.Who, cmp.Or(is.Cohort, c.cohort), c, true, r.By.Others})
			}
		}
	}
	return all
}

// died returns the parties of the clients that have died.
func (m *Machine) died() (all []party) {
	for _, id := range m.deaths {
		if c := m.clients[id]; c != nil {
			all = append(all, party{who: c.who, cohort: c.cohort, c: c})
		}
	}
	return all
}

// behind returns one of the parties for each identity or address, without those that do not count.
func (m *Machine) behind(all []party) (counted []party) {
	type of struct{ who, cohort string }
	known, counts := map[of]bool{}, map[string]bool{}
	for _, p := range all {
		at := of{p.who, p.cohort}
		if known[at] {
			continue
		}
		known[at] = true
		if !counts[p.who] && !m.discounted(p) {
			counts[p.who] = true
			counted = append(counted, p)
		}
	}
	return counted
}

// weigh returns how many clients these rejections or deaths count for.
func (m *Machine) weigh(all []party) (n int) {
	for _, p := range m.behind(all) {
		if p.relayed || !m.isMost(p.who) {
			n++
			continue
		}
		for _, o := range all {
			if o.who == p.who {
				n++
			}
		}
	}
	return n
}

// standsForAll reports whether a party may speak for all clients: there are hardly any others.
func (m *Machine) standsForAll(p party) bool {
	if p.relayed {
		return p.others == 0 && len(m.whos) <= 1
	}
	return m.isFleet(p.who)
}

// discounted reports whether a rejection or death does not count: its party is passed over, and another client of the
// same cohort has the change and has not rejected it, or is still to be tried. If no other client of the cohort can try
// the change, a client of another cohort serves instead. Behind a relay, so do the relay's other clients.
func (m *Machine) discounted(p party) bool {
	if !m.passedOver(p.who) || m.standsForAll(p) {
		return false
	}
	if p.others > 0 {
		return true
	}
	anywhere, refused := false, false
	for _, o := range m.clients {
		if o == p.c || o.who == p.who || !o.eligible || m.passedOver(o.who) {
			continue
		}
		same := o.cohort == p.cohort
		switch {
		case m.took(o), m.open(o), m.untried(o), m.unsettled(o):
			if same {
				return true
			}
			anywhere = true
		case same && m.trying(o) && (o.rejected || o.dead):
			refused = true
		}
	}
	return anywhere && !refused
}

// triedWho reports whether the rollout has tried a client of the cohort with this who.
func (m *Machine) triedWho(of cohort, who string) bool {
	return slices.ContainsFunc(of, func(c *client) bool { return c.who == who && m.trying(c) })
}

// noteStrike records a strike if one identity or address alone stops the rollout.
func (m *Machine) noteStrike() {
	counted := m.behind(slices.Concat(m.rejected(), m.died()))
	if len(counted) != 1 || m.standsForAll(counted[0]) {
		return
	}
	who := counted[0].who
	at := slices.IndexFunc(m.strikes, func(s strike) bool { return s.who == who })
	if at < 0 {
		if len(m.strikes) == maxStruck {
			m.strikes = slices.Delete(m.strikes, 0, 1)
		}
		at = len(m.strikes)
		m.strikes = append(m.strikes, strike{who: who})
	}
	if m.strikes[at].n++; m.strikes[at].n == maxStrikes {
		m.decisions = append(m.decisions, Decision{Kind: PassOver, Client: who})
	}
}
