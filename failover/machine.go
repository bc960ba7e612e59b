package failover

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// Options are the settings of a [Machine].
type Options struct {
	// Unreachable: try the next server also if nothing is missing, once no server was
	// reachable for Grace.
	Unreachable bool
	Grace       time.Duration
	// Timeout is the time for a server's first response. After it the next server is
	// tried.
	Timeout time.Duration
	// ConnectTimeout is the time within which one of several servers must send the very
	// first response; after it all of them count as failed. Until then the next server is
	// tried after a second or less, or a bit later if the one before has opened a stream.
	// 0: only Timeout applies.
	ConnectTimeout time.Duration
	// Hysteresis is the time for which a flapping server must be up before it becomes
	// active again.
	Hysteresis time.Duration
	// Switches, if not nil, counts the changes of the active server. Several groups may
	// share it.
	Switches *atomic.Uint64
}

// Machine decides which of an authority's servers to try, and which one is active. A server
// that has answered may be replaced when its stream is lost, but never because it is slow:
// slowness counts only until the first response.
//
// It is a value without concurrency control. After each call of a method that takes the
// time, the caller must perform [Machine.Actions]. At the time [Machine.Next], if nothing happens
// before, it must call [Machine.Tick].
//
// Decisions depend on the state and not on the event that led to it, so an event may be
// reported twice.
type Machine struct {
	opts    Options
	servers []server // by priority
	// active is the index of the active server, -1 until one has answered.
	active int
	// missing: a wanted topic has no answer.
	missing bool
	// noneUpSince is when the last server that was up was lost, or when the first one
	// was tried; zero while one is up.
	noneUpSince time.Time
	unreachable bool // all servers have failed, and Fail was issued
	// everAnswered: a server has responded at some time.
	everAnswered bool
	actions      []Action
}

// server is the state of one server.
type server struct {
	name  string
	state state
	since time.Time // when it entered that state
	// answered: the server has answered since the machine opened it. If its stream opens
	// again it may have nothing to send, because nothing is new.
	answered bool
	// streaming: the server has opened a stream and has not answered.
	streaming bool
	lostAt    time.Time // when it was last up
	// openedAt is when a failing server that had answered before opened its stream.
	openedAt time.Time
	// onTrial: the server flaps, and must be up for Hysteresis before it becomes active.
	onTrial bool
	reason  string // why it failed
}

type state uint8

const (
	closed state = iota
	trying
	failing // it has failed, and has not answered since
	up      // it has answered on this stream, or on an earlier one and this one is open
)

func (s state) String() string { return [...]string{"closed", "trying", "failing", "up"}[s] }

// ActionKind is the kind of an [Action].
type ActionKind uint8

// The kinds of actions.
const (
	// Open: open a server, and send it all subscriptions.
	Open ActionKind = iota
	// Close: unsubscribe, and close the feed.
	Close
	// Replace: close and open a server that is not active, so that it sends everything
	// again. The cache no longer holds what it had sent.
	Replace
	// Switch: make a server the active one.
	Switch
	// Fail: report to all topics without an answer that no server is reachable, with
	// the Reason.
	Fail
)

// Action is a step that the Machine's caller has to perform.
type Action struct {
	Kind   ActionKind
	Server int
	Reason string // of Switch and Fail
}

// NewMachine returns a machine for servers, by priority. None is open.
func NewMachine(names []string, o Options) *Machine {
	m := &Machine{opts: o, servers: make([]server, len(names)), active: -1}
	for i, name := range names {
		m.servers[i].name = name
	}
	return m
}

// Missing sets whether a wanted topic has no answer.
func (m *Machine) Missing(now time.Time, missing bool) {
	m.missing = missing
	m.decide(now)
}

// Opened reports that a stream to a server is open.
func (m *Machine) Opened(now time.Time, i int) {
	switch s := &m.servers[i]; {
	case !s.answered:
		s.streaming = s.state == trying
	case s.state == failing && m.opts.Unreachable:
		s.openedAt = now // what it sent before is out of date until it responds
	default:
		m.markUp(now, s)
	}
	m.decide(now)
}

// Responded reports the first response of a stream.
func (m *Machine) Responded(now time.Time, i int) {
	s := &m.servers[i]
	s.answered, m.everAnswered = true, true
	m.markUp(now, s)
	m.decide(now)
}

// Lost reports that a stream with a response has ended, and that the feed opens
// another.
func (m *Machine) Lost(now time.Time, i int, reason string) {
	s := &m.servers[i]
	s.reason, s.openedAt, s.streaming = reason, time.Time{}, false
	if s.state == up {
		m.markDown(now, s, trying)
	}
	m.decide(now)
}

// Failed reports that a stream could not be opened, or has ended without a response.
func (m *Machine) Failed(now time.Time, i int, reason string) {
	s := &m.servers[i]
	s.reason, s.openedAt, s.streaming = reason, time.Time{}, false
	switch s.state {
	case up:
		m.markDown(now, s, failing)
	case trying:
		s.state, s.since = failing, now
	case failing, closed:
	}
	m.decide(now)
}

// Tick reports that time has passed.
func (m *Machine) Tick(now time.Time) { m.decide(now) }

// markUp changes a server's state to up.
func (m *Machine) markUp(now time.Time, s *server) {
	if s.state == closed || s.state == up {
		return
	}
	s.onTrial = s.onTrial || !s.lostAt.IsZero() && now.Sub(s.lostAt) < m.opts.Hysteresis
	s.state, s.since, s.reason, s.openedAt, s.streaming = up, now, "", time.Time{}, false
}

// markDown changes the state of a server that was up.
func (m *Machine) markDown(now time.Time, s *server, to state) {
	s.onTrial = now.Sub(s.since) < m.opts.Hysteresis && (s.onTrial || !s.lostAt.IsZero())
	s.lostAt = now
	s.state, s.since = to, now
}

// Active returns the index of the active server, -1 if there is none.
func (m *Machine) Active() int { return m.active }

// Up reports whether a server is up.
func (m *Machine) Up(i int) bool { return m.servers[i].state == up }

// Unreachable reports whether all servers have been tried and none is reachable, and
// since when no server is up.
func (m *Machine) Unreachable() (since time.Time, down bool) { return m.noneUpSince, m.unreachable }

// AllFailed reports whether every server has failed. A server that is only slow has
// not.
func (m *Machine) AllFailed() bool {
	for i := range m.servers {
		if m.servers[i].state != failing {
			return false
		}
	}
	return true
}

// Actions returns the actions to perform, in order, and clears them.
func (m *Machine) Actions() []Action {
	a := m.actions
	m.actions = nil
	return a
}

func (m *Machine) add(kind ActionKind, i int, reason string) {
	m.actions = append(m.actions, Action{kind, i, reason})
}

// decide derives actions from the state.
func (m *Machine) decide(now time.Time) {
	if m.servers[0].state == closed {
		if !m.missing {
			return // no topic has been wanted yet
		}
		m.noneUpSince = now
		m.open(now, 0)
	}
	for i := range m.servers {
		// An open and silent stream means that the server has nothing new.
		if s := &m.servers[i]; s.state == failing && !s.openedAt.IsZero() && now.Sub(s.openedAt) >= m.opts.Timeout {
			m.markUp(now, s)
		}
	}
	m.choose(now)
	switch anyUp := m.anyUp(); {
	case anyUp:
		m.noneUpSince, m.unreachable = time.Time{}, false
	case m.noneUpSince.IsZero():
		m.noneUpSince = now
	}
	for m.tryNext(now) {
		m.open(now, m.opened())
	}
	m.failStarting(now)
	if failed := m.exhausted(now); failed && !m.unreachable {
		m.unreachable = true
		m.add(Fail, -1, m.failureReasons())
	}
}

func (m *Machine) open(now time.Time, i int) {
	m.servers[i] = server{name: m.servers[i].name, state: trying, since: now}
	m.add(Open, i, "")
}

// choose makes the right server active, and closes those of lower priority.
func (m *Machine) choose(now time.Time) {
	if w := m.winner(now); w != m.active {
		reason := "it has answered"
		if m.active >= 0 && m.servers[m.active].state != up {
			reason = m.servers[m.active].failureReason(m.opts.Timeout)
		}
		m.active = w
		m.servers[w].onTrial = false
		m.add(Switch, w, reason)
		for i := range w {
			if s := &m.servers[i]; s.answered {
				// The active server replaces what this one had sent, so its feed
				// cannot resume.
				s.answered = false
				m.add(Replace, i, "")
			}
		}
	}
	if m.active < 0 || m.servers[m.active].state != up && m.needsReplacement(now) {
		return
	}
	for i := m.active + 1; i < len(m.servers); i++ {
		if m.servers[i].state != closed {
			m.servers[i] = server{name: m.servers[i].name}
			m.add(Close, i, "")
		}
	}
}

// winner returns the server that should be active.
func (m *Machine) winner(now time.Time) int {
	for i := range m.servers {
		s := &m.servers[i]
		switch {
		case s.state != up:
			if m.active < 0 && s.state == trying && s.streaming && !m.failedOrSlow(now, i) {
				return m.active // its first response may come within Timeout
			}
		case i == m.active, m.active < 0:
			return i
		case i < m.active:
			if m.servers[m.active].state == up && s.onTrial && now.Before(s.since.Add(m.opts.Hysteresis)) {
				continue
			}
			return i
		case m.needsReplacement(now):
			return i
		}
	}
	return m.active
}

// needsReplacement reports whether a server that is not up must be replaced by the
// next one.
func (m *Machine) needsReplacement(now time.Time) bool {
	return m.missing || m.opts.Unreachable && !m.noneUpSince.IsZero() && !now.Before(m.noneUpSince.Add(m.opts.Grace))
}

// tryNext reports whether to try the next server.
func (m *Machine) tryNext(now time.Time) bool {
	n := m.opened()
	return n < len(m.servers) && !m.anyUp() && m.needsReplacement(now) && m.allowsNext(now, n-1)
}

// failedOrSlow reports whether a server has failed, or has exceeded Timeout.
func (m *Machine) failedOrSlow(now time.Time, i int) bool {
	s := &m.servers[i]
	return s.state == failing || s.state == trying && !now.Before(s.since.Add(m.opts.Timeout))
}

// allowsNext reports whether the state of a server permits to try the next one.
func (m *Machine) allowsNext(now time.Time, i int) bool {
	return m.failedOrSlow(now, i) || m.starting(i) && !now.Before(m.servers[i].since.Add(m.startInterval(i)))
}

// starting reports whether Options.ConnectTimeout applies to a server: none has ever
// answered.
func (m *Machine) starting(i int) bool {
	return m.opts.ConnectTimeout > 0 && len(m.servers) > 1 && !m.everAnswered && m.servers[i].state == trying
}

// lastStart is the time that the last server has at least.
const lastStart = time.Second

// startInterval is the time that a starting server has before the next one is tried: for
// opening a stream, and longer if the stream is open.
func (m *Machine) startInterval(i int) time.Duration {
	const toOpen = time.Second
	share := max(m.opts.ConnectTimeout-lastStart, 0) / time.Duration(max(len(m.servers)-1, 1))
	if m.servers[i].streaming {
		return share
	}
	return min(toOpen, share)
}

// startDeadline is when starting servers fail. All are open.
func (m *Machine) startDeadline() time.Time {
	at := m.noneUpSince.Add(m.opts.ConnectTimeout)
	if last := m.servers[len(m.servers)-1].since.Add(lastStart); last.After(at) {
		return last
	}
	return at
}

// failStarting marks all servers as failed if all have been tried and none has ever
// answered. A server that is only slow is up again with its first response.
func (m *Machine) failStarting(now time.Time) {
	if m.opened() < len(m.servers) || now.Before(m.startDeadline()) {
		return
	}
	for i := range m.servers {
		if m.servers[i].state != failing && !m.starting(i) {
			return
		}
	}
	for i := range m.servers {
		if s := &m.servers[i]; m.starting(i) {
			what := "no stream"
			if s.streaming {
				what = "no response"
			}
			s.reason = fmt.Sprintf("%s within %s", what, now.Sub(s.since).Round(100*time.Millisecond))
			s.state, s.since, s.streaming = failing, now, false
		}
	}
}

// failureReason describes the failure of a server that is not up.
func (s *server) failureReason(timeout time.Duration) string {
	if s.reason == "" {
		return fmt.Sprintf("%s has not answered for %s", s.name, timeout)
	}
	return s.name + ": " + s.reason
}

// failureReasons describes the failures of all servers.
func (m *Machine) failureReasons() string {
	reasons := make([]string, len(m.servers))
	for i := range m.servers {
		reasons[i] = m.servers[i].failureReason(m.opts.Timeout)
	}
	return strings.Join(reasons, "; ")
}

// opened returns the number of open servers: the first ones by priority.
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

// exhausted reports whether no server is left to try.
func (m *Machine) exhausted(now time.Time) bool {
	for i := range m.servers {
		if m.servers[i].state == closed || !m.failedOrSlow(now, i) {
			return m.unreachable && !m.anyUp()
		}
	}
	return true
}

// Next returns when to call Tick, a time after now; zero for never.
func (m *Machine) Next(now time.Time) (next time.Time) {
	at := func(t time.Time) {
		if !t.After(now) {
			return // it has taken effect already
		}
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	anyUp := m.anyUp()
	for i := range m.servers {
		if m.starting(i) && !m.unreachable && !anyUp {
			at(m.servers[i].since.Add(m.startInterval(i)))
			at(m.startDeadline())
		}
		switch s := &m.servers[i]; {
		case s.state == up && i < m.active && s.onTrial:
			at(s.since.Add(m.opts.Hysteresis))
		case s.state == trying && (!anyUp || m.active < 0) && !m.unreachable:
			at(s.since.Add(m.opts.Timeout))
		case s.state == failing && !s.openedAt.IsZero():
			at(s.openedAt.Add(m.opts.Timeout))
		}
	}
	if m.opts.Unreachable && !m.missing && !anyUp && !m.noneUpSince.IsZero() && m.opened() < len(m.servers) {
		at(m.noneUpSince.Add(m.opts.Grace))
	}
	return next
}
