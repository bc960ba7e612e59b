package rollout

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/internal/chain"
)

// Time is a point in time or a duration, in nanoseconds of a monotonic clock.
type Time int64

// Options are a Machine's settings.
type Options struct {
	// First is the number of clients of each cohort that get a change before all others.
	First int
	// Steps are the fractions of each cohort that then get the change: between 0 and 1, in ascending order.
	Steps []float64
	// Soak is the minimum duration of a step.
	Soak Time
	// Rejections is the number of clients whose NACKs stop a rollout, and Deaths the number of clients whose deaths
	// do.
	Rejections, Deaths int
	// Frozen: no client gets anything new until Thaw.
	Frozen bool
	// Salt determines the order in which clients are chosen. A client that knows the salt can pick an id that puts it
	// first.
	Salt uint64
}

// Phase is what a Machine is doing.
type Phase uint8

// The phases of a Machine.
const (
	// Idle: clients have everything that the control plane has sent.
	Idle Phase = iota
	// Rolling: some clients have the new state, or will get it.
	Rolling
	// Stopped: the new state was refused. All clients have the accepted one.
	Stopped
	// Held: there is a new state, but no client has it because the machine is frozen.
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
	// SendNACK: the control plane gets a NACK with the reason why its state was refused.
	SendNACK
	// PassOver: rejections from the Who of a client no longer count while other clients accept.
	PassOver
)

// Decision is an action that the Machine's caller has to perform.
type Decision struct {
	Kind   Kind
	Client string // for ShowNew and ShowAccepted an ID, for PassOver a Client.Who
	Reason string // for SendNACK
}

// Machine decides which clients get a change. It is a value without concurrency control. Its other methods that take
// the time only record events. The caller calls [Machine.Tick] after some of them, and no later than [Machine.Next],
// and then performs [Machine.Decisions].
type Machine struct {
	opts    Options
	frozen  bool
	clients map[string]*client
	// sorted has the clients by cohort, and within a cohort in the order in which they are chosen. It is nil if it
	// has to be computed again.
	sorted []*client
	// room is the reused buffer of cohortsOf.
	room []*client
	// suspects has the clients whose suspect field is set.
	suspects map[string]*client
	// whos counts the present clients by their who, and total counts all of them.
	whos  map[string]int
	total int
	// strikes has the identities or addresses that alone have stopped rollouts.
	strikes []strike
	// content is the digest of the new state, "" if there is none. hidden: clients would not see a difference.
	content string
	hidden  bool
	phase   Phase
	// attempt numbers the rollouts.
	attempt uint64
	// step is 0 for the first clients. From 1 on, it is the number of an entry in Options.Steps.
	step int
	// part is the fraction of the Options.Steps entry that began last.
	part float64
	// stepAt is when the step began, soakAt when its soak began, and joinedAt when the content last changed. seriesAt
	// is when the first rollout of an unbroken series of restarted rollouts began.
	stepAt, soakAt, joinedAt, seriesAt Time
	// leftAt is when an eligible client last left, 0 if none has.
	leftAt Time
	// continues: the next rollout continues the series that began at seriesAt.
	continues bool
	// rejections and deaths are those of the current rollout, or of the one that was stopped.
	rejections []Rejection
	deaths     []string
	reason     string   // why the rollout was stopped
	refused    []string // refused contents, the newest last
	decisions  []Decision
	// undecided: an event was recorded that may lead to a decision.
	undecided bool
}

// Rejection is a client's NACK.
type Rejection struct {
	Client, Message string
	// By are those behind the client that reject it, if the client is a relay.
	By chain.Rejecters
}

// Client describes a client that joins.
type Client struct {
	ID, Cohort string
	// Who is the identity or address behind the client. Empty means that the ID serves as Who.
	Who string
	// Eligible: the client can be shown the new state. OnNew: the client already has the new state.
	Eligible, OnNew bool
}

// client is what a Machine knows about a client.
type client struct {
	id, cohort, who string
	order           uint64 // a hash of the id, by which clients are chosen
	// eligible: the client can be shown the new state. settled: it has ACKed the accepted state.
	eligible, settled bool
	present           bool // the client has a stream
	shown             bool // it was shown the new state
	// tried is the number of the last rollout that showed the client the new state.
	tried uint64
	// In that rollout:
	answer   answer
	tookSome bool // it ACKed the change before another change joined
	sentAt   Time // when the client was last sent the change
	rejected bool
	// suspect: the client's stream ended within a soak, at diedAt, and the client has not returned. returned: it has
	// since returned, at returnedAt. dead: the client counts as dead.
	suspect, returned, dead bool
	diedAt, returnedAt      Time
}

// answer is the state of a client's answer to the new state.
type answer uint8

const (
	silent    answer = iota // the client was not sent the new state yet
	sent                    // the client has not answered
	taken                   // the client has ACKed it
	untouched               // the new state differs in nothing that the client subscribes to
)

// maxRefused is how many refused contents a Machine remembers.
const maxRefused = 64

// NewMachine returns a machine without clients. Nothing is pending in it.
func NewMachine(o Options) *Machine {
	return &Machine{opts: o, frozen: o.Frozen, clients: map[string]*client{}, suspects: map[string]*client{}, whos: map[string]int{}}
}

// Changed reports the new state. content is a digest of it, "" if the control plane's state is the accepted one.
// hidden: no client would see a difference before acceptance, because the change consists of removals only. In the
// first step, the change joins the rollout, and all clients that were shown the new state have to be reported as Sent
// or Untouched again. Later, the change ends the rollout, and another one begins: see [Machine.Began] and
// [Machine.MayRestart].
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
		m.continues = joins
	}
	if slices.Contains(m.refused, content) {
		m.decisions = append(m.decisions, Decision{Kind: SendNACK, Reason: "the same content was refused before"})
	}
	m.undecided = true
}

// Began reports whether the rollout is past its first clients, or frozen. Further changes must not join it then.
func (m *Machine) Began() bool { return m.phase == Rolling && (m.step > 0 || m.frozen) }

// MayRestart reports whether a running rollout may end and another one begin, because the control plane has replaced
// some of the resources that are being rolled out. It returns false once rollouts have followed each other for 20
// soaks.
func (m *Machine) MayRestart(now Time) bool {
	return !m.frozen && now-m.seriesAt < maxSeries*m.opts.Soak
}

// Joined reports that a client has joined, or has returned.
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
		c.shown = false // its stream began with the accepted state
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

// Withdraw reports that a client cannot be shown the new state any longer.
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

// hide moves a client back to the accepted state.
func (m *Machine) hide(c *client) {
	c.shown = false
	m.decisions = append(m.decisions, Decision{Kind: ShowAccepted, Client: c.id})
}

// askAgain makes the clients that have answered answer again, for the change that has joined.
func (m *Machine) askAgain() {
	for _, c := range m.clients {
		if m.trying(c) && (c.answer == taken || c.answer == untouched) {
			c.tookSome = c.tookSome || c.answer == taken
			c.answer = silent
		}
	}
}

// orderOf returns the position of a client in the order in which clients are chosen.
func (m *Machine) orderOf(id string) uint64 {
	h := xxhash.NewWithSeed(m.opts.Salt)
	_, _ = h.WriteString(id)
	return h.Sum64()
}

// Settled reports that a client has ACKed the accepted state.
func (m *Machine) Settled(_ Time, id string) {
	if c := m.clients[id]; c != nil && !c.settled {
		c.settled, m.undecided = true, true
	}
}

// Left reports that a client no longer subscribes to anything of the authority and partition.
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

// Sent reports that the relay is sending a client the new state.
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

// Untouched reports that a client on the new state gets no response for it.
func (m *Machine) Untouched(_ Time, id string) {
	if c := m.clients[id]; c != nil && c.shown && c.answer == silent {
		c.answer, m.undecided = untouched, true
		if c.tookSome {
			c.answer = taken
		}
	}
}

// Acked reports that a client has ACKed everything new that it was sent.
func (m *Machine) Acked(_ Time, id string) {
	if c := m.clients[id]; c != nil && c.shown && c.answer == sent && !c.rejected {
		c.answer = taken
	}
}

// Rejected reports that a client has NACKed the new state. words is the client's error message. A relay reports again when
// further clients of its own reject it.
func (m *Machine) Rejected(_ Time, id, words string, by chain.Rejecters) {
	c := m.clients[id]
	if c == nil || !c.shown || m.phase != Rolling {
		return
	}
	r := Rejection{id, words, by}
	switch at := slices.IndexFunc(m.rejections, func(r Rejection) bool { return r.Client == id }); {
	case !c.rejected:
		m.rejections = append(m.rejections, r)
	case at >= 0 && len(by.Whos) > 0:
		m.rejections[at] = r
	default:
		return
	}
	c.rejected, m.undecided = true, true
}

// Tick makes the decisions that are due.
func (m *Machine) Tick(now Time) {
	if !m.undecided && (m.phase != Rolling || now < m.due()) {
		return
	}
	m.undecided = false
	m.run(now)
}

// Approve accepts the new state at once. It reports whether there was one.
func (m *Machine) Approve(Time) bool {
	if m.content == "" {
		return false
	}
	m.refused = slices.DeleteFunc(m.refused, func(c string) bool { return c == m.content })
	m.accept()
	return true
}

// Reject stops the rollout, or refuses the content that is waiting for one. It reports whether there was anything to
// reject.
func (m *Machine) Reject(_ Time, words string) bool {
	if m.content == "" || m.phase == Stopped {
		return false
	}
	m.stop(words)
	return true
}

// Freeze stops progress: until Thaw, no further client gets the new state.
func (m *Machine) Freeze(Time) { m.frozen = true }

// Configure changes the settings. A running rollout continues with the new ones, from the fraction of clients that it
// has reached. Configure ignores Frozen, which only Freeze and Thaw change, and Salt.
func (m *Machine) Configure(o Options) {
	o.Salt = m.opts.Salt
	m.opts, m.undecided = o, true
	if m.step > 0 {
		m.step = max(1, m.stepsUpTo(m.part))
	}
}

// Regroup reports that a client now belongs to another cohort.
func (m *Machine) Regroup(_ Time, id, cohort string) {
	if c := m.clients[id]; c != nil && c.cohort != cohort {
		c.cohort, m.undecided, m.sorted = cohort, true, nil
	}
}

// Thaw ends Freeze. The soak of the current step starts again.
func (m *Machine) Thaw(now Time) {
	m.frozen = false
	m.stepAt, m.soakAt, m.undecided = now, now, true
}

// Phase returns what the machine is doing.
func (m *Machine) Phase() Phase { return m.phase }

// Decisions returns the decisions to perform, in order, and clears them.
func (m *Machine) Decisions() []Decision {
	d := m.decisions
	m.decisions = nil
	return d
}

func (m *Machine) decide(k Kind) { m.decisions = append(m.decisions, Decision{Kind: k}) }

// trying reports whether the current rollout has shown a client the new state.
func (m *Machine) trying(c *client) bool { return m.phase == Rolling && c.tried == m.attempt }

// gone records that a client has no stream. The machine remembers the client's part in the current rollout.
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

// end ends a rollout. Afterwards no client is shown the new state.
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
	m.content, m.reason, m.rejections, m.deaths, m.continues = "", "", nil, nil, false
	m.decide(Accept)
}

func (m *Machine) stop(reason string) {
	rolling := m.phase == Rolling
	m.end()
	m.continues = false
	m.phase, m.reason = Stopped, reason
	if m.refused = append(m.refused, m.content); len(m.refused) > maxRefused {
		m.refused = slices.Delete(m.refused, 0, 1)
	}
	if rolling {
		m.decide(GoBack)
	}
	m.decisions = append(m.decisions, Decision{Kind: SendNACK, Reason: reason})
}
