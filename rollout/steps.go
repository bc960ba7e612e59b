package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// This file moves a rollout from step to step.

const (
	// patience is the number of soaks that the first step waits for answers at most. A change that joins within that
	// time starts the soak again.
	patience = 10
	// joinDivisor: after that time, a joining change extends the step by 1/joinDivisor of a soak. maxSeries is the
	// number of soaks after which nothing extends the step.
	joinDivisor = 10
	maxSeries   = 20
)

// run makes the decisions that the current state requires.
func (m *Machine) run(now Time) {
	switch {
	case m.phase == Rolling:
	case m.content == "":
		m.phase, m.reason, m.rejections, m.deaths = Idle, "", nil, nil
		return
	case slices.Contains(m.refused, m.content):
		m.phase = Stopped
		return
	case m.frozen:
		m.phase, m.reason, m.rejections, m.deaths = Held, "", nil, nil
		return
	default:
		m.begin(now)
	}
	m.countAbsent(now)
	if reason := m.stopsFor(); reason != "" {
		m.noteStrike()
		m.stop(reason)
		return
	}
	if m.frozen {
		return
	}
	for {
		m.showAgain()
		if m.step == 0 {
			m.showFirst(false)
		}
		if !m.soaked(now) {
			return
		}
		if m.awaits(now) && now < m.stepAt+m.patienceOf() {
			if m.step == 0 {
				m.showFirst(true)
			}
			m.soakAt = now
			return
		}
		if m.nextStep(now); m.phase != Rolling {
			return
		}
	}
}

// patienceOf returns how long the step may wait for answers.
func (m *Machine) patienceOf() Time {
	if m.step == 0 {
		return patience * m.opts.Soak
	}
	const later = 3
	return later * m.opts.Soak
}

func (m *Machine) begin(now Time) {
	m.attempt++
	if !m.continues {
		m.seriesAt = now
	}
	m.continues = false
	m.phase, m.step, m.part, m.stepAt, m.soakAt, m.joinedAt = Rolling, 0, 0, now, now, now
	m.reason, m.rejections, m.deaths = "", nil, nil
}

// soaked reports whether the step's soak has passed.
func (m *Machine) soaked(now Time) bool { return now >= m.soakEnds() }

// soakEnds returns when the step's soak ends.
func (m *Machine) soakEnds() Time {
	end := m.soakAt + m.opts.Soak
	if bound := m.stepAt + patience*m.opts.Soak; m.joinedAt >= bound {
		end = max(end, min(m.joinedAt+m.opts.Soak/joinDivisor, m.stepAt+maxSeries*m.opts.Soak))
	}
	return end
}

// countAbsent counts suspects that have stayed away for a soak as dead.
func (m *Machine) countAbsent(now Time) {
	if len(m.suspects) == 0 {
		return
	}
	for _, c := range m.inOrder(func(c *client) bool { return c.suspect && now >= c.diedAt+m.opts.Soak }) {
		m.die(c)
	}
}

// stopsFor returns why the rollout must stop, "" if it may go on.
func (m *Machine) stopsFor() string {
	const most = 3 // clients named in the reason
	var parts []string
	if m.weigh(m.rejected()) >= m.opts.Rejections {
		for _, r := range m.rejections[:min(len(m.rejections), most)] {
			parts = append(parts, fmt.Sprintf("client %q rejected the change: %s", r.Client, r.Message))
		}
	}
	if m.weigh(m.died()) >= m.opts.Deaths {
		for _, id := range m.deaths[:min(len(m.deaths), most)] {
			parts = append(parts, fmt.Sprintf("client %q died after it was sent the change", id))
		}
	}
	return strings.Join(parts, "; ")
}

// showAgain shows the new state again to clients that had it and have returned.
func (m *Machine) showAgain() {
	for _, c := range m.inOrder(func(c *client) bool {
		return m.trying(c) && c.present && c.settled && c.eligible && !c.shown && !c.rejected && !c.dead
	}) {
		m.show(c)
	}
}

func (m *Machine) show(c *client) {
	c.shown, c.answer, c.tookSome, c.sentAt = true, silent, false, 0
	if c.tried != m.attempt {
		c.tried, c.rejected, c.suspect, c.returned, c.dead = m.attempt, false, false, false, false
	}
	m.decisions = append(m.decisions, Decision{Kind: ShowNew, Client: c.id})
}

// showFirst shows the new state to enough clients of each cohort that First of them can accept it. more: each
// client that is connected and does not answer gets a substitute. A client whose stream has ended gets none: it may return,
// or turn out to have died.
func (m *Machine) showFirst(more bool) {
	if m.hidden {
		return
	}
	for _, of := range m.cohorts() {
		missing := m.opts.First - of.count(func(c *client) bool { return m.took(c) || m.open(c) && (!more || c.suspect || c.returned) })
		if more {
			missing = min(missing, 1)
		}
		missing = m.showUntried(of, missing, func(c *client) bool { return !m.passedOver(c.who) && !m.triedWho(of, c.who) })
		missing = m.showUntried(of, missing, func(c *client) bool { return !m.passedOver(c.who) })
		m.showUntried(of, missing, func(*client) bool { return true })
	}
}

// showUntried shows the new state to at most n further clients of a cohort that satisfy may. It returns how many of
// the n are missing.
func (m *Machine) showUntried(of cohort, n int, may func(*client) bool) int {
	for _, c := range of {
		if n > 0 && m.untried(c) && may(c) {
			m.show(c)
			n--
		}
	}
	return n
}

// untried reports whether the current rollout can show a client the new state, and has not done so.
func (m *Machine) untried(c *client) bool {
	return c.present && c.settled && c.eligible && c.tried != m.attempt
}

// unsettled reports whether the current rollout may show a client the new state later: the client has not ACKed the
// accepted state yet, as just after a start of the relay.
func (m *Machine) unsettled(c *client) bool {
	return c.present && !c.settled && c.eligible && c.tried != m.attempt
}

// took reports whether a client has the new state and has ACKed it.
func (m *Machine) took(c *client) bool {
	return m.trying(c) && c.present && c.shown && c.answer == taken && !c.rejected
}

// open reports whether a client that was shown the new state has not answered yet.
func (m *Machine) open(c *client) bool {
	if !m.trying(c) || c.rejected || c.dead {
		return false
	}
	return c.suspect || c.present && (c.shown && c.answer < taken || !c.shown && c.returned)
}

// awaits reports whether the step needs further answers.
func (m *Machine) awaits(now Time) bool {
	if m.hidden {
		return false
	}
	if m.step == 0 && m.awaitsReturn(now) {
		return true
	}
	for _, of := range m.cohortsOf(func(c *client) bool { return c.present }) {
		open := of.count(m.open)
		if m.step > 0 && open > 0 {
			return true
		}
		if m.step == 0 && of.count(m.took) < m.opts.First && open+of.count(m.untried)+of.count(m.unsettled) > 0 {
			return true
		}
	}
	return false
}

// awaitsReturn reports whether all eligible clients have left within the last 10 soaks, and none has accepted the
// change. They may return, as after a restart of the relay or a network failure, and would otherwise all get a change
// that no client has tried.
func (m *Machine) awaitsReturn(now Time) bool {
	if m.leftAt == 0 || now-m.leftAt >= patience*m.opts.Soak {
		return false
	}
	for _, c := range m.clients {
		if c.present && c.eligible || m.trying(c) && c.answer == taken && !c.rejected {
			return false
		}
	}
	return true
}

// nextStep begins the next step that shows the change to a client. If there is none, it accepts the change.
func (m *Machine) nextStep(now Time) {
	for m.step = m.stepsUpTo(m.part) + 1; m.step <= len(m.opts.Steps); m.step++ {
		before := len(m.decisions)
		m.part = m.opts.Steps[m.step-1]
		m.showPart(m.part)
		if len(m.decisions) > before {
			m.stepAt, m.soakAt = now, now
			return
		}
	}
	m.accept()
}

// stepsUpTo returns how many steps show the change to at most this fraction of the clients.
func (m *Machine) stepsUpTo(part float64) (n int) {
	for n < len(m.opts.Steps) && m.opts.Steps[n] <= part {
		n++
	}
	return n
}

// showPart shows the new state to a fraction of each cohort.
func (m *Machine) showPart(part float64) {
	if m.hidden {
		return
	}
	for _, of := range m.cohorts() {
		all := of.count(func(c *client) bool { return c.present })
		m.showUntried(of, int(math.Ceil(part*float64(all)))-of.count(func(c *client) bool { return c.present && c.shown }), func(*client) bool { return true })
	}
}

// cohort has the clients of one cohort, in the order of their hashes.
type cohort []*client

func (of cohort) count(which func(*client) bool) (n int) {
	for _, c := range of {
		if which(c) {
			n++
		}
	}
	return n
}

// cohorts returns the clients that can be shown the new state, or were. The cohorts are sorted by name.
func (m *Machine) cohorts() []cohort {
	return m.cohortsOf(func(c *client) bool { return c.present && c.settled })
}

// cohortsOf returns the eligible clients that satisfy which or were shown the new state, by cohort. The result is
// valid until the next call.
func (m *Machine) cohortsOf(which func(*client) bool) (out []cohort) {
	sorted := m.byCohort()
	if clear(m.room); cap(m.room) < len(sorted) {
		m.room = make([]*client, 0, len(sorted))
	}
	all := m.room[:0]
	for _, c := range sorted {
		if c.eligible && (which(c) || m.trying(c)) {
			all = append(all, c)
		}
	}
	m.room = all
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].cohort == all[0].cohort {
			n++
		}
		out = append(out, all[:n])
		all = all[n:]
	}
	return out
}

// byCohort returns the clients by cohort, and within a cohort in the order of their hashes.
func (m *Machine) byCohort() []*client {
	if m.sorted == nil {
		m.sorted = slices.AppendSeq(make([]*client, 0, len(m.clients)), maps.Values(m.clients))
		slices.SortFunc(m.sorted, func(a, b *client) int { return cmp.Or(strings.Compare(a.cohort, b.cohort), compareOrder(a, b)) })
	}
	return m.sorted
}

// inOrder returns the clients that satisfy which, in the order of their hashes.
func (m *Machine) inOrder(which func(*client) bool) (out []*client) {
	for _, c := range m.byCohort() {
		if which(c) {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, compareOrder)
	return out
}

func compareOrder(a, b *client) int {
	return cmp.Or(cmp.Compare(a.order, b.order), strings.Compare(a.id, b.id))
}

// Next returns when to call Tick: a time after now, or 0 for never.
func (m *Machine) Next(now Time) Time {
	if m.phase != Rolling {
		return 0
	}
	if at := m.due(); at < never {
		return max(at, now+1)
	}
	return 0
}

const never = Time(math.MaxInt64)

// due returns when the passing of time alone requires a decision.
func (m *Machine) due() Time {
	at := never
	for _, c := range m.suspects {
		at = min(at, c.diedAt+m.opts.Soak)
	}
	if !m.frozen {
		at = min(at, m.soakEnds())
	}
	return at
}
