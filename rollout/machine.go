package rollout

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Time is a moment, or a span, in nanoseconds of a clock that never goes back.
type Time int64

// Options are a Machine's settings.
type Options struct {
	// First is how many clients of each cohort get a change before all others.
	First int
	// Steps are the parts of each cohort that get it after that, between 0 and 1 and rising.
	Steps []float64
	// Soak is how long each step takes at least.
	Soak Time
	// Rejections is the number of clients whose NACKs stop a rollout, Deaths that of the clients
	// that die of it.
	Rejections, Deaths int
	// Frozen: nothing new is let through, until Thaw.
	Frozen bool
	// Salt changes the order in which clients are chosen. A client that knows it can choose an id with
	// which it comes first.
	Salt uint64
}

// Phase is what a Machine is doing.
type Phase uint8

// The phases of a Machine.
const (
	// Idle: clients have all that the control plane says.
	Idle Phase = iota
	// Rolling: some clients have the new state, or will get it.
	Rolling
	// Stopped: the new state was refused. All clients have the accepted one.
	Stopped
	// Held: there is a new state, and no client has it because the machine is frozen.
	Held
)

// String returns the phase in lower case.
func (p Phase) String() string { return [...]string{"idle", "rolling", "stopped", "held"}[p] }

// Kind is the kind of a [Decision].
type Kind uint8

// The kinds of decisions.
const (
	// ShowNew: the client gets the new state.
	ShowNew Kind = iota
	// ShowAccepted: the client gets the accepted state again.
	ShowAccepted
	// GoBack: all clients get the accepted state again.
	GoBack
	// Accept: the new state is accepted, so that all clients get it.
	Accept
	// Tell: the control plane is sent a NACK that says why its state was refused.
	Tell
	// PassOver: rejections by the Who of a client do not count any more, where others accept.
	PassOver
)

// Decision is a step that the Machine's caller has to perform.
type Decision struct {
	Kind   Kind
	Client string // of ShowNew and ShowAccepted; a Client.Who of PassOver
	Words  string // of Tell
}

// Machine decides who gets a change. It is a value without concurrency control. The other methods
// that take the time only note what has happened: after some of them, and at [Machine.Next] if
// nothing happens before, the caller calls [Machine.Tick] and performs [Machine.Decisions].
type Machine struct {
	opts    Options
	frozen  bool
	clients map[string]*client
	// sorted are the clients by their cohorts, and within one in the order in which they are chosen; nil if
	// that is to be found out.
	sorted []*client
	// room is for what cohortsOf returns.
	room []*client
	// suspects are the clients that are suspect.
	suspects map[string]*client
	// whos counts the clients that are present, by their who, and all of them under total.
	whos  map[string]int
	total int
	// strikes has those who stopped rollouts alone.
	strikes []strike
	// content is what is new, "" if nothing is. hidden: clients would not see a difference.
	content string
	hidden  bool
	phase   Phase
	// attempt numbers the rollouts.
	attempt uint64
	// step is 0 for the first clients, and otherwise the number of the entry of Options.Steps.
	step int
	// part is that of the last entry of Options.Steps that was begun.
	part float64
	// stepAt is when the step began, soakAt when its soak did, and joinedAt when the content
	// changed last. seriesAt is when the first of the rollouts began that were begun anew since.
	stepAt, soakAt, joinedAt, seriesAt Time
	// leftAt is when a client that can be shown the new state was there last, 0 if there was none.
	leftAt Time
	// anew: the next rollout goes on with the series.
	anew bool
	// rejections and deaths are those of this rollout, or of the one that was stopped.
	rejections []Rejection
	deaths     []string
	reason     string   // why it was stopped
	refused    []string // contents, the newest last
	decisions  []Decision
	// undecided: something has been noted that may lead to a decision.
	undecided bool
}

// Rejection is a client's NACK.
type Rejection struct{ Client, Words string }

// Client is a client that comes.
type Client struct {
	ID, Cohort string
	// Who stands behind the client: an identity, or an address. Empty if the ID says that, too.
	Who string
	// Eligible: it can be shown the new state. OnNew: it has the new state from before.
	Eligible, OnNew bool
}

// client is what a Machine knows of a client.
type client struct {
	id, cohort, who string
	order           uint64 // a hash of the id, by which clients are chosen
	// eligible: it can be shown the new state. settled: it has taken the accepted state.
	eligible, settled bool
	present           bool // it has a stream
	shown             bool // the new state
	// tried is the number of the last rollout in which it was shown the new state.
	tried uint64
	// Of that rollout:
	answer   answer
	tookSome bool // before more joined
	sentAt   Time // when it was last sent the change
	rejected bool
	// suspect: its stream ended within a soak, at diedAt, and it has not come back. returned: it
	// has come back since, at returnedAt. dead: that counts as a death.
	suspect, returned, dead bool
	diedAt, returnedAt      Time
}

// answer is what a client that was shown the new state has made of it.
type answer uint8

const (
	silent    answer = iota // it was not sent it yet
	sent                    // it has not answered
	taken                   // it has ACKed it
	untouched               // it has nothing of what is new
)

// maxRefused is how many refused contents a Machine remembers.
const maxRefused = 64

// NewMachine returns a machine without clients, for which everything is accepted.
func NewMachine(o Options) *Machine {
	return &Machine{opts: o, frozen: o.Frozen, clients: map[string]*client{}, suspects: map[string]*client{}, whos: map[string]int{}}
}

// Changed reports what is new: content is a digest of it, "" if the control plane says what is
// accepted. hidden: no client would see a difference before it is accepted, as nothing but removals
// are new. In the first step, what has changed joins the rollout, and all who were shown the new state
// have to be Sent, or Untouched, again. Later, it ends the rollout, and
// another begins: see [Machine.Began] and [Machine.BeginsAnew].
func (m *Machine) Changed(now Time, content string, hidden bool) {
	if content == m.content {
		return
	}
	m.content, m.hidden, m.joinedAt = content, hidden, now
	switch joins := content != "" && !slices.Contains(m.refused, content); {
	case m.phase != Rolling:
	case joins && m.step == 0:
		if now-m.stepAt < patience*m.opts.Soak {
			m.soakAt = now
		}
		m.askAgain()
	default:
		m.end()
		m.decide(GoBack)
		m.anew = joins
	}
	if slices.Contains(m.refused, content) {
		m.decisions = append(m.decisions, Decision{Kind: Tell, Words: "the same was refused before"})
	}
	m.undecided = true
}

// Began reports whether the rollout is past its first clients, or stands still: what changes must not
// join it.
func (m *Machine) Began() bool { return m.phase == Rolling && (m.step > 0 || m.frozen) }

// BeginsAnew reports whether a rollout that has begun may end, and another one begin, because the
// control plane has replaced some of what is rolled out. That is so until it has gone on for 20 soaks.
func (m *Machine) BeginsAnew(now Time) bool {
	return !m.frozen && now-m.seriesAt < exhausted*m.opts.Soak
}

// Joined reports that a client has come, or has come back.
func (m *Machine) Joined(now Time, is Client) {
	c := m.clients[is.ID]
	if c == nil {
		c = &client{id: is.ID, order: m.orderOf(is.ID)}
		m.clients[is.ID] = c
		m.sorted = nil
	}
	if c.cohort != is.Cohort {
		m.sorted = nil
	}
	m.countWho(c, -1)
	c.cohort, c.who, c.eligible, c.present, c.settled = is.Cohort, cmp.Or(is.Who, is.ID), is.Eligible, true, is.OnNew
	m.countWho(c, 1)
	switch had := is.Eligible && m.phase == Rolling && c.tried == m.attempt && !c.dead && !c.rejected; {
	case c.shown && !is.OnNew:
		c.shown = false // it has begun with the accepted state
	case is.OnNew && had:
		c.shown = true
	case is.OnNew:
		m.hide(c)
	}
	if c.suspect {
		delete(m.suspects, is.ID)
		c.suspect, c.returned, c.returnedAt = false, true, now
	}
}

// Withdraw reports that a client cannot be shown the new state any more.
func (m *Machine) Withdraw(_ Time, id string) {
	c := m.clients[id]
	if c == nil || !c.eligible {
		return
	}
	c.eligible, m.undecided = false, true
	if c.shown {
		m.hide(c)
	}
}

// hide has a client get the accepted state again.
func (m *Machine) hide(c *client) {
	c.shown = false
	m.decisions = append(m.decisions, Decision{Kind: ShowAccepted, Client: c.id})
}

// askAgain has those who have taken what is rolled out take what has joined it.
func (m *Machine) askAgain() {
	for _, c := range m.clients {
		if m.trying(c) && (c.answer == taken || c.answer == untouched) {
			c.tookSome = c.tookSome || c.answer == taken
			c.answer = silent
		}
	}
}

// orderOf returns where a client is in the order in which clients are chosen.
func (m *Machine) orderOf(id string) uint64 {
	h := xxhash.NewWithSeed(m.opts.Salt)
	_, _ = h.WriteString(id)
	return h.Sum64()
}

// Settled reports that a client has taken the accepted state.
func (m *Machine) Settled(_ Time, id string) {
	if c := m.clients[id]; c != nil && !c.settled {
		c.settled, m.undecided = true, true
	}
}

// Left reports that a client needs nothing more of the authority and partition.
func (m *Machine) Left(now Time, id string) {
	if c := m.clients[id]; c != nil {
		m.gone(now, c)
	}
}

// Died reports that a client's stream has ended.
func (m *Machine) Died(now Time, id string) {
	c := m.clients[id]
	if c == nil {
		return
	}
	wasSent := m.trying(c) && c.sentAt > 0 && now-c.sentAt <= m.opts.Soak
	switch {
	case c.dead || m.phase != Rolling:
	case m.trying(c) && c.returned && (wasSent || now-c.returnedAt <= m.opts.Soak):
		m.die(c)
	case wasSent && c.shown:
		c.suspect, c.diedAt = true, now
		m.suspects[id] = c
	}
	m.gone(now, c)
}

// Sent reports that a client is being sent what is new.
func (m *Machine) Sent(now Time, id string) {
	c := m.clients[id]
	if c == nil || !c.shown {
		return
	}
	if c.answer == silent && now-m.stepAt < patience*m.opts.Soak {
		m.soakAt = now
	}
	c.answer, c.sentAt = sent, max(now, 1)
}

// Untouched reports that a client, which is shown the new state, is sent nothing for that.
func (m *Machine) Untouched(_ Time, id string) {
	if c := m.clients[id]; c != nil && c.shown && c.answer == silent {
		c.answer, m.undecided = untouched, true
		if c.tookSome {
			c.answer = taken
		}
	}
}

// Acked reports that a client has ACKed all that it was sent of what is new.
func (m *Machine) Acked(_ Time, id string) {
	if c := m.clients[id]; c != nil && c.shown && c.answer == sent && !c.rejected {
		c.answer = taken
	}
}

// Rejected reports that a client has NACKed what is new, in its own words.
func (m *Machine) Rejected(_ Time, id, words string) {
	c := m.clients[id]
	if c == nil || !c.shown || c.rejected || m.phase != Rolling {
		return
	}
	c.rejected, m.undecided = true, true
	m.rejections = append(m.rejections, Rejection{id, words})
}

// Tick decides what there is to be decided.
func (m *Machine) Tick(now Time) {
	if !m.undecided && (m.phase != Rolling || now < m.due()) {
		return
	}
	m.undecided = false
	m.run(now)
}

// Approve accepts what is new at once. It reports whether there was something.
func (m *Machine) Approve(Time) bool {
	if m.content == "" {
		return false
	}
	m.refused = slices.DeleteFunc(m.refused, func(c string) bool { return c == m.content })
	m.accept()
	return true
}

// Reject stops a rollout, or refuses what would be rolled out. It reports whether there was
// something.
func (m *Machine) Reject(_ Time, words string) bool {
	if m.content == "" || m.phase == Stopped {
		return false
	}
	m.stop(words)
	return true
}

// Freeze holds everything where it is: until Thaw, no further client gets what is new.
func (m *Machine) Freeze(Time) { m.frozen = true }

// Configure changes the settings. A rollout that goes on goes on by the new ones, from the part of the
// clients that it has reached. Frozen is for Freeze and Thaw to change, and Salt stays.
func (m *Machine) Configure(o Options) {
	o.Salt = m.opts.Salt
	m.opts, m.undecided = o, true
	if m.step > 0 {
		m.step = max(1, m.stepsUpTo(m.part))
	}
}

// Regroup reports that a client is in another cohort.
func (m *Machine) Regroup(_ Time, id, cohort string) {
	if c := m.clients[id]; c != nil && c.cohort != cohort {
		c.cohort, m.undecided, m.sorted = cohort, true, nil
	}
}

// Thaw ends Freeze. The soak of a step begins anew.
func (m *Machine) Thaw(now Time) {
	m.frozen = false
	m.stepAt, m.soakAt, m.undecided = now, now, true
}

// Phase returns what the machine is doing.
func (m *Machine) Phase() Phase { return m.phase }

// Frozen reports whether nothing new is let through.
func (m *Machine) Frozen() bool { return m.frozen }

// Decisions returns the decisions to perform, in order, and clears them.
func (m *Machine) Decisions() []Decision {
	d := m.decisions
	m.decisions = nil
	return d
}

func (m *Machine) decide(k Kind) { m.decisions = append(m.decisions, Decision{Kind: k}) }

// trying reports whether a client was shown what is rolled out now.
func (m *Machine) trying(c *client) bool { return m.phase == Rolling && c.tried == m.attempt }

// gone notes that a client has no stream. What it has to do with the rollout is remembered.
func (m *Machine) gone(now Time, c *client) {
	m.countWho(c, -1)
	if c.present && c.eligible {
		m.leftAt = now
	}
	c.present, c.settled = false, false
	if !m.trying(c) {
		delete(m.clients, c.id)
		m.sorted = nil
	}
}

func (m *Machine) die(c *client) {
	delete(m.suspects, c.id)
	c.suspect, c.returned, c.dead, m.undecided = false, false, true, true
	m.deaths = append(m.deaths, c.id)
}

// end ends a rollout: no client is shown the new state.
func (m *Machine) end() {
	m.phase = Idle
	clear(m.suspects)
	maps.DeleteFunc(m.clients, func(_ string, c *client) bool {
		c.shown, c.suspect, c.returned, c.dead = false, false, false, false
		return !c.present
	})
	if len(m.sorted) > len(m.clients) {
		m.sorted = nil
	}
	m.undecided = true
}

func (m *Machine) accept() {
	m.end()
	m.content, m.reason, m.rejections, m.deaths, m.anew = "", "", nil, nil, false
	m.decide(Accept)
}

func (m *Machine) stop(reason string) {
	rolling := m.phase == Rolling
	m.end()
	m.anew = false
	m.phase, m.reason = Stopped, reason
	if m.refused = append(m.refused, m.content); len(m.refused) > maxRefused {
		m.refused = slices.Delete(m.refused, 0, 1)
	}
	if rolling {
		m.decide(GoBack)
	}
	m.decisions = append(m.decisions, Decision{Kind: Tell, Words: reason})
}
