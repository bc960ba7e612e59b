package failover

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// Options are the settings of a [Machine].
type Options struct {
	// Unreachable has the next server tried also if nothing is missing, once none
	// could be reached for Grace.
	Unreachable bool
	Grace       time.Duration
	// Timeout is how long a server may take for its first response before the next is
	// tried.
	Timeout time.Duration
	// Connect is how long it may take until the first stream to one of several servers is
	// open: after that none can be reached. Until then the next server is tried after a
	// second. 0 is no limit but that of each server.
	Connect time.Duration
	// Hysteresis is how long a server that flaps must have been up before the relay
	// goes back to it.
	Hysteresis time.Duration
	// Switches, if not nil, counts how often the relay has gone to another server. It
	// may be shared.
	Switches *atomic.Uint64
}

// Machine decides which of an authority's servers are tried, and whose word counts.
// It is a value: after each of its methods that takes the time, [Machine.Actions] are
// to be done; and at [Machine.Next], if nothing comes before, [Machine.Tick] is to be
// called.
//
// It decides by the state that it is in, not by the event that led there, so that
// events may be told twice.
type Machine struct {
	opts    Options
	servers []server // by priority
	// active is the server whose word counts, -1 as long as none has answered.
	active int
	// missing says that something is wanted of which no answer is held.
	missing bool
	// since is when the last server that was up was lost, or when the first one was
	// tried; zero while one is up.
	since  time.Time
	failed bool // Fail was the last to be said of all servers
	// reached says that one of them has ever opened a stream.
	reached bool
	actions []Action
}

// server is one of them.
type server struct {
	name  string
	state state
	since time.Time // when it came to that state
	// answered says that it has answered since it was opened: if its stream opens
	// again, it need not say anything, because nothing may be new.
	answered bool
	lost     time.Time // when it was last up
	// opened is when the stream was opened of one that is failing and had answered.
	opened time.Time
	// trial says that it flaps: it must be up for a while before it wins.
	trial  bool
	reason string // why it failed
}

type state uint8

const (
	closed state = iota
	trying
	failing // it has failed, and has not answered since
	up      // it has answered, on this stream or, if that is quiet, on one before
)

func (s state) String() string { return [...]string{"closed", "trying", "failing", "up"}[s] }

// ActionKind is what is to be done.
type ActionKind uint8

// The kinds of actions.
const (
	// Open begins to ask a server for all that is wanted.
	Open ActionKind = iota
	// Close ends that.
	Close
	// Replace closes and opens a server that is not up, so that it is asked for
	// everything anew: what it once said is not held any more.
	Replace
	// Switch makes a server's word count, and no other's.
	Switch
	// Fail tells all that is missing that no server can be reached, for that Reason.
	Fail
)

// Action is something to be done.
type Action struct {
	Kind   ActionKind
	Server int
	Reason string // of Switch and Fail
}

// NewMachine makes a machine for servers, by priority, of which none is open.
func NewMachine(names []string, o Options) *Machine {
	m := &Machine{opts: o, servers: make([]server, len(names)), active: -1}
	for i, name := range names {
		m.servers[i].name = name
	}
	return m
}

// Missing notes whether something is wanted of which no answer is held.
func (m *Machine) Missing(now time.Time, missing bool) {
	m.missing = missing
	m.decide(now)
}

// Opened notes that a stream to a server is open.
func (m *Machine) Opened(now time.Time, i int) {
	m.reached = true
	switch s := &m.servers[i]; {
	case !s.answered:
	case s.state == failing && m.opts.Unreachable:
		s.opened = now // what it held is out of date until it says something
	default:
		m.rise(now, s)
	}
	m.decide(now)
}

// Responded notes that a server has sent a response, the first of its stream.
func (m *Machine) Responded(now time.Time, i int) {
	s := &m.servers[i]
	s.answered, m.reached = true, true
	m.rise(now, s)
	m.decide(now)
}

// Lost notes that a stream that has brought a response has ended, and that another
// is being opened.
func (m *Machine) Lost(now time.Time, i int, reason string) {
	s := &m.servers[i]
	s.reason, s.opened = reason, time.Time{}
	if s.state == up {
		m.fall(now, s, trying)
	}
	m.decide(now)
}

// Failed notes that a stream could not be opened, or has brought nothing.
func (m *Machine) Failed(now time.Time, i int, reason string) {
	s := &m.servers[i]
	s.reason, s.opened = reason, time.Time{}
	switch s.state {
	case up:
		m.fall(now, s, failing)
	case trying:
		s.state, s.since = failing, now
	case failing, closed:
	}
	m.decide(now)
}

// Tick notes that time has passed.
func (m *Machine) Tick(now time.Time) { m.decide(now) }

// rise notes that a server is up.
func (m *Machine) rise(now time.Time, s *server) {
	if s.state == closed || s.state == up {
		return
	}
	s.trial = s.trial || !s.lost.IsZero() && now.Sub(s.lost) < m.opts.Hysteresis
	s.state, s.since, s.reason, s.opened = up, now, "", time.Time{}
}

// fall notes that a server is not up any more.
func (m *Machine) fall(now time.Time, s *server, to state) {
	s.trial = now.Sub(s.since) < m.opts.Hysteresis && (s.trial || !s.lost.IsZero())
	s.lost = now
	s.state, s.since = to, now
}

// Active returns the server whose word counts, -1 if there is none.
func (m *Machine) Active() int { return m.active }

// Up says whether a server is answering.
func (m *Machine) Up(i int) bool { return m.servers[i].state == up }

// Unreachable says that no server can be reached, that all have been tried, and
// since when the last one is gone.
func (m *Machine) Unreachable() (since time.Time, down bool) { return m.since, m.failed }

// AllFailed says that every server has been tried and has failed: none is only slow.
func (m *Machine) AllFailed() bool {
	for i := range m.servers {
		if m.servers[i].state != failing {
			return false
		}
	}
	return true
}

// Actions returns what is to be done, in order, and forgets it.
func (m *Machine) Actions() []Action {
	a := m.actions
	m.actions = nil
	return a
}

func (m *Machine) do(kind ActionKind, i int, reason string) {
	m.actions = append(m.actions, Action{kind, i, reason})
}

// decide does what follows from the state.
func (m *Machine) decide(now time.Time) {
	if m.servers[0].state == closed {
		if !m.missing {
			return // nothing has been wanted yet
		}
		m.since = now
		m.open(now, 0)
	}
	for i := range m.servers {
		// Perhaps it had nothing to say after all.
		if s := &m.servers[i]; s.state == failing && !s.opened.IsZero() && now.Sub(s.opened) >= m.opts.Timeout {
			m.rise(now, s)
		}
	}
	m.choose(now)
	switch anyUp := m.anyUp(); {
	case anyUp:
		m.since, m.failed = time.Time{}, false
	case m.since.IsZero():
		m.since = now
	}
	for m.tryNext(now) {
		m.open(now, m.opened())
	}
	m.giveUpConnecting(now)
	if failed := m.allFailed(now); failed && !m.failed {
		m.failed = true
		m.do(Fail, -1, m.reasons())
	}
}

func (m *Machine) open(now time.Time, i int) {
	m.servers[i] = server{name: m.servers[i].name, state: trying, since: now}
	m.do(Open, i, "")
}

// choose makes the right server's word count, and closes those that it makes
// superfluous.
func (m *Machine) choose(now time.Time) {
	if w := m.winner(now); w != m.active {
		reason := "it has answered"
		if m.active >= 0 && m.servers[m.active].state != up {
			reason = m.servers[m.active].why(m.opts.Timeout)
		}
		m.active = w
		m.servers[w].trial = false
		m.do(Switch, w, reason)
		for i := range w {
			if s := &m.servers[i]; s.answered {
				// What it had said is replaced, so it cannot go on from there.
				s.answered = false
				m.do(Replace, i, "")
			}
		}
	}
	if m.active < 0 || m.servers[m.active].state != up && m.need(now) {
		return
	}
	for i := m.active + 1; i < len(m.servers); i++ {
		if m.servers[i].state != closed {
			m.servers[i] = server{name: m.servers[i].name}
			m.do(Close, i, "")
		}
	}
}

// winner returns the server whose word is to count.
func (m *Machine) winner(now time.Time) int {
	for i := range m.servers {
		s := &m.servers[i]
		switch {
		case s.state != up:
		case i == m.active, m.active < 0:
			return i
		case i < m.active:
			if m.servers[m.active].state == up && s.trial && now.Before(s.since.Add(m.opts.Hysteresis)) {
				continue
			}
			return i
		case m.need(now):
			return i
		}
	}
	return m.active
}

// need says whether a server that is gone must be replaced.
func (m *Machine) need(now time.Time) bool {
	return m.missing || m.opts.Unreachable && !m.since.IsZero() && !now.Before(m.since.Add(m.opts.Grace))
}

// tryNext says whether the next server is to be tried.
func (m *Machine) tryNext(now time.Time) bool {
	n := m.opened()
	return n < len(m.servers) && !m.anyUp() && m.need(now) && m.letsNext(now, n-1)
}

// gaveUp says that a server has failed, or takes too long.
func (m *Machine) gaveUp(now time.Time, i int) bool {
	s := &m.servers[i]
	return s.state == failing || s.state == trying && !now.Before(s.since.Add(m.opts.Timeout))
}

// letsNext says that a server lets the next one be tried.
func (m *Machine) letsNext(now time.Time, i int) bool {
	return m.gaveUp(now, i) || m.connecting(i) && !now.Before(m.servers[i].since.Add(m.patience()))
}

// connecting says that a server has no stream yet, and is to have one in time: see
// Options.Connect.
func (m *Machine) connecting(i int) bool {
	return m.opts.Connect > 0 && len(m.servers) > 1 && !m.reached && m.servers[i].state == trying
}

// patience is how long a server may take to open a stream before the next one is tried, so
// that each has a second at least.
func (m *Machine) patience() time.Duration {
	const each = time.Second
	return min(each, max(m.opts.Connect-each, 0)/time.Duration(max(len(m.servers)-1, 1)))
}

// giveUpConnecting notes that no server can be reached, if all have been tried and none has
// opened a stream in time.
func (m *Machine) giveUpConnecting(now time.Time) {
	if m.opened() < len(m.servers) || now.Before(m.since.Add(m.opts.Connect)) {
		return
	}
	for i := range m.servers {
		if m.servers[i].state != failing && !m.connecting(i) {
			return
		}
	}
	for i := range m.servers {
		if s := &m.servers[i]; m.connecting(i) {
			s.reason = fmt.Sprintf("no stream within %s", now.Sub(s.since).Round(100*time.Millisecond))
			s.state, s.since = failing, now
		}
	}
}

// why says what is wrong with a server that is not up.
func (s *server) why(timeout time.Duration) string {
	if s.reason == "" {
		return fmt.Sprintf("%s has not answered for %s", s.name, timeout)
	}
	return s.name + ": " + s.reason
}

// reasons says what is wrong with all.
func (m *Machine) reasons() string {
	reasons := make([]string, len(m.servers))
	for i := range m.servers {
		reasons[i] = m.servers[i].why(m.opts.Timeout)
	}
	return strings.Join(reasons, "; ")
}

// opened returns the number of servers that are open: the first ones.
func (m *Machine) opened() (n int) {
	for n < len(m.servers) && m.servers[n].state != closed {
		n++
	}
	return n
}

func (m *Machine) anyUp() bool {
	for i := range m.servers {
		if m.servers[i].state == up {
			return true
		}
	}
	return false
}

// allFailed says that there is no server left to be tried.
func (m *Machine) allFailed(now time.Time) bool {
	for i := range m.servers {
		if m.servers[i].state == closed || !m.gaveUp(now, i) {
			return m.failed && !m.anyUp()
		}
	}
	return true
}

// Next returns when Tick is to be called, after now, zero for never.
func (m *Machine) Next(now time.Time) (next time.Time) {
	at := func(t time.Time) {
		if !t.After(now) {
			return // it has had its effect
		}
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	anyUp := m.anyUp()
	for i := range m.servers {
		if m.connecting(i) && !m.failed {
			at(m.servers[i].since.Add(m.patience()))
			at(m.since.Add(m.opts.Connect))
		}
		switch s := &m.servers[i]; {
		case s.state == up && i < m.active && s.trial:
			at(s.since.Add(m.opts.Hysteresis))
		case s.state == trying && !anyUp && !m.failed:
			at(s.since.Add(m.opts.Timeout))
		case s.state == failing && !s.opened.IsZero():
			at(s.opened.Add(m.opts.Timeout))
		}
	}
	if m.opts.Unreachable && !m.missing && !anyUp && !m.since.IsZero() && m.opened() < len(m.servers) {
		at(m.since.Add(m.opts.Grace))
	}
	return next
}
