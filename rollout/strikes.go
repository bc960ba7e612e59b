package rollout

import "slices"

// What one identity or address can do to rollouts. Somebody can open many connections with many node
// ids, and reject changes or break off streams on purpose. So rejections and deaths count once for all
// clients behind whom the same one stands; unless most clients are that one's, as where all share a
// certificate. One who stopped several rollouts, alone each time, is passed over.

const (
	// maxStrikes is how many rollouts somebody stops alone until passed over.
	maxStrikes = 3
	// maxStruck bounds those of whom that is noted. Each has stopped a rollout.
	maxStruck = 256
)

// strike is how many rollouts somebody has stopped alone.
type strike struct {
	who string
	n   int
}

// countWho counts a client that is present.
func (m *Machine) countWho(c *client, n int) {
	if !c.present {
		return
	}
	m.total += n
	if m.whos[c.who] += n; m.whos[c.who] == 0 {
		delete(m.whos, c.who)
	}
}

// isMost reports whether most clients are somebody's.
func (m *Machine) isMost(who string) bool {
	const half = 2
	return half*m.whos[who] > m.total
}

// passedOver reports whether somebody has stopped too many rollouts alone.
func (m *Machine) passedOver(who string) bool {
	return slices.ContainsFunc(m.strikes, func(s strike) bool { return s.who == who && s.n >= maxStrikes })
}

// Trust has the rejections of those count again who are passed over. It returns how many there were.
func (m *Machine) Trust(Time) (n int) {
	for _, s := range m.strikes {
		if s.n >= maxStrikes {
			n++
		}
	}
	m.strikes, m.undecided = nil, true
	return n
}

// rejected returns the clients that have rejected what is rolled out.
func (m *Machine) rejected() (ids []string) {
	for _, r := range m.rejections {
		ids = append(ids, r.Client)
	}
	return ids
}

// behind returns who stands behind clients, each once, without those that do not count.
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

// weigh returns for how many clients the rejections or deaths of some count.
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

// discounted reports whether what a client does with the change does not count: who stands behind it is
// passed over, and another client of its cohort has the change and has not rejected it. If the cohort
// has no client that is not passed over, one of another cohort stands for it.
func (m *Machine) discounted(c *client) bool {
	if !m.passedOver(c.who) || m.isMost(c.who) {
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

// triedWho reports whether a client of a cohort behind whom somebody stands was tried.
func (m *Machine) triedWho(of cohort, who string) bool {
	return slices.ContainsFunc(of, func(c *client) bool { return c.who == who && m.trying(c) })
}

// noteStrike notes who stops the rollout, if one does so alone.
func (m *Machine) noteStrike() {
	whos := m.behind(slices.Concat(m.rejected(), m.deaths))
	if len(whos) != 1 || m.isMost(whos[0]) {
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
