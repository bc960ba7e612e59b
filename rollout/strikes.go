package rollout

import "slices"

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

// rejected returns the clients that have rejected the change.
func (m *Machine) rejected() (ids []string) {
	for _, r := range m.rejections {
		ids = append(ids, r.Client)
	}
	return ids
}

// behind returns the identities or addresses behind clients, each once, without those that do not count.
func (m *Machine) behind(ids []string) (whos []string) {
	type of struct{ who, cohort string }
	known, counts := map[of]bool{}, map[string]bool{}
	for _, id := range ids {
		c := m.clients[id]
		if c == nil || known[of{c.who, c.cohort}] {
			continue
		}
		known[of{c.who, c.cohort}] = true
		if !counts[c.who] && !m.discounted(c) {
			counts[c.who] = true
			whos = append(whos, c.who)
		}
	}
	return whos
}

// weigh returns how many clients the rejections or deaths of these clients count for.
func (m *Machine) weigh(ids []string) (n int) {
	for _, who := range m.behind(ids) {
		if !m.isMost(who) {
			n++
			continue
		}
		for _, id := range ids {
			if c := m.clients[id]; c != nil && c.who == who {
				n++
			}
		}
	}
	return n
}

// discounted reports whether a client's rejection or death does not count: its who is passed over, and another client
// of its cohort has the change and has not rejected it. If all other clients of the cohort are passed over, a client
// of another cohort serves instead.
func (m *Machine) discounted(c *client) bool {
	if !m.passedOver(c.who) || m.isFleet(c.who) {
		return false
	}
	anywhere, there, has := false, false, false
	for _, o := range m.clients {
		if o.who == c.who || !o.eligible || m.passedOver(o.who) {
			continue
		}
		if o.cohort == c.cohort && o.present {
			there = true
		}
		if m.took(o) || m.open(o) {
			anywhere = true
			has = has || o.cohort == c.cohort
		}
	}
	return has || anywhere && !there
}

// triedWho reports whether the rollout has tried a client of the cohort with this who.
func (m *Machine) triedWho(of cohort, who string) bool {
	return slices.ContainsFunc(of, func(c *client) bool { return c.who == who && m.trying(c) })
}

// noteStrike records a strike if one identity or address alone stops the rollout.
func (m *Machine) noteStrike() {
	whos := m.behind(slices.Concat(m.rejected(), m.deaths))
	if len(whos) != 1 || m.isFleet(whos[0]) {
		return
	}
	at := slices.IndexFunc(m.strikes, func(s strike) bool { return s.who == whos[0] })
	if at < 0 {
		if len(m.strikes) == maxStruck {
			m.strikes = slices.Delete(m.strikes, 0, 1)
		}
		at = len(m.strikes)
		m.strikes = append(m.strikes, strike{who: whos[0]})
	}
	if m.strikes[at].n++; m.strikes[at].n == maxStrikes {
		m.decisions = append(m.decisions, Decision{Kind: PassOver, Client: whos[0]})
	}
}
