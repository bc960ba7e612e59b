package chain

import (
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Table has the chains of the clients of each scope. The clients of a scope share its stream
// to the control plane, so the stream announces the relays of all of them.
//
// All methods may be called with any other lock held. With its lock held, the table calls only the functions given to
// Watch, which must not block.
type Table[K comparable] struct {
	own    string
	linger time.Duration

	mu     sync.Mutex
	scopes map[K]*scope
	// idle are scopes that lost their last client and that no stream announces, the oldest
	// first. Some may have clients again.
	idle []K
}

// maxIdle bounds the scopes whose relays are kept for the linger time although no stream announces
// them: clients can make up scopes.
const maxIdle = 100

// maxRelays bounds the known relays of a scope: clients can make up ids. Loops are found only
// through known relays.
const maxRelays = 1024

// refusedFor is how long a scope has no clients that come through a relay which has refused the scope's stream as a
// loop. Then the next such client shows whether there still is one.
const refusedFor = time.Minute

type refusal struct {
	loop  *LoopError
	until time.Time
}

type scope struct {
	members map[*Member]struct{}
	refused map[string]refusal // by the id of the relay
	// relays are the relays in the clients' chains, in the order of their arrival, and
	// byID the same by id. self is the table's own relay: every client that is a relay
	// counts for it.
	relays   []*relayClients
	byID     map[string]*relayClients
	self     relayClients
	watchers map[*func()]struct{}
	forget   *time.Timer // removes relays that have gone, nil if none have
}

// relayClients is a relay, and the number of clients that come through it. It is kept for a
// while after the last one has left.
type relayClients struct {
	id      string
	clients int
	goneAt  time.Time
}

// Member is a client of a scope that is a relay.
type Member struct {
	known Chain // the part of its chain that the table knows
	end   func(error)
}

// NewTable returns a table for the relay with that id. It forgets a relay the linger time
// after its last client has left, as most come back.
func NewTable[K comparable](own string, linger time.Duration) *Table[K] {
	return &Table[K]{own: own, linger: linger, scopes: map[K]*scope{}}
}

// Configure changes the id of the table's own relay, and the linger time.
func (t *Table[K]) Configure(own string, linger time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.own, t.linger = own, linger
}

// Join records that a client with that chain, which is a relay, uses the scope, until Leave. end ends the client's stream; the
// table calls it in a goroutine of its own. The error is a *LoopError: the client would bring the scope into a loop.
// Then the Member is nil, which Leave accepts.
func (t *Table[K]) Join(k K, c Chain, end func(error)) (*Member, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.get(k)
	s.admitAgain()
	for _, id := range c.IDs {
		if r, refused := s.refused[id]; refused {
			return nil, r.loop
		}
	}
	grown := s.self.clients == 0
	s.self.clients++
	known := c
	for i, id := range c.IDs {
		r := s.byID[id]
		if r == nil {
			if r = s.count(id); r == nil {
				if len(known.IDs) == len(c.IDs) {
					known.IDs = slices.Clone(c.IDs[:i])
				}
				continue
			}
		}
		if len(known.IDs) < len(c.IDs) {
			known.IDs = append(known.IDs, id)
		}
		grown = grown || r.clients == 0
		r.clients++
	}
	m := &Member{known, end}
	s.members[m] = struct{}{}
	if grown {
		s.notify()
	}
	return m, nil
}

// count adds a relay. If there are too many, the relay replaces one that has gone. count returns nil if
// none has.
func (s *scope) count(id string) *relayClients {
	if len(s.relays) == maxRelays {
		gone := slices.IndexFunc(s.relays, func(r *relayClients) bool { return r.clients == 0 })
		if gone < 0 {
			return nil
		}
		delete(s.byID, s.relays[gone].id)
		s.relays = slices.Delete(s.relays, gone, gone+1)
	}
	r := &relayClients{id: id}
	s.relays = append(s.relays, r)
	s.byID[id] = r
	return r
}

// Leave undoes a Join.
func (t *Table[K]) Leave(k K, m *Member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leave(k, m)
}

// leave is Leave. It does nothing if the member has left. The caller holds mu.
func (t *Table[K]) leave(k K, m *Member) {
	s := t.scopes[k]
	if s == nil {
		return
	}
	if _, present := s.members[m]; !present {
		return
	}
	delete(s.members, m)
	shrunk := s.self.leave()
	for _, id := range m.known.IDs {
		if s.byID[id].leave() {
			shrunk = true
		}
	}
	if shrunk && s.forget == nil {
		s.forget = time.AfterFunc(t.linger, func() { t.afterLinger(k, s) })
	}
	t.boundIdle(k, s)
}

// admitAgain forgets the relays that were refused long enough ago.
func (s *scope) admitAgain() {
	now := time.Now()
	maps.DeleteFunc(s.refused, func(_ string, r refusal) bool { return !now.Before(r.until) })
}

// boundIdle notes that a scope may be idle, and removes the oldest one if there are too many. The
// caller holds mu.
func (t *Table[K]) boundIdle(k K, s *scope) {
	if !s.isIdle() {
		return
	}
	if t.idle = append(t.idle, k); len(t.idle) <= maxIdle {
		return
	}
	oldest := t.idle[0]
	t.idle = slices.Delete(t.idle, 0, 1)
	if s := t.scopes[oldest]; s != nil && s.isIdle() {
		s.stopForgetting()
		t.tidy(oldest, s)
	}
}

func (s *scope) isIdle() bool { return s.self.clients == 0 && len(s.watchers) == 0 }

func (s *scope) stopForgetting() {
	if s.forget != nil {
		s.forget.Stop()
		s.forget = nil
	}
}

// leave reports whether this was the last client.
func (r *relayClients) leave() bool {
	if r.clients--; r.clients > 0 {
		return false
	}
	r.goneAt = time.Now()
	return true
}

// recent reports whether a relay is present, or has left less than the linger time ago.
func (t *Table[K]) recent(r *relayClients) bool {
	return r.clients > 0 || time.Since(r.goneAt) < t.linger
}

// afterLinger forgets the relays that left longer than the linger time ago.
func (t *Table[K]) afterLinger(k K, s *scope) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.scopes[k] != s {
		return // it was removed since
	}
	s.forget = nil
	s.relays = slices.DeleteFunc(s.relays, func(r *relayClients) bool {
		if t.recent(r) {
			return false
		}
		delete(s.byID, r.id)
		return true
	})
	s.notify()
	next := time.Duration(-1)
	for _, r := range append(s.relays[:len(s.relays):len(s.relays)], &s.self) {
		if wait := t.linger - time.Since(r.goneAt); r.clients == 0 && wait > 0 && (next < 0 || wait < next) {
			next = wait
		}
	}
	if next >= 0 {
		s.forget = time.AfterFunc(next, func() { t.afterLinger(k, s) })
	}
	t.tidy(k, s)
}

// Of returns the announcement for a scope.
func (t *Table[K]) Of(k K) Announced[K] { return Announced[K]{t, k} }

// Announced is what the streams of a scope announce.
type Announced[K comparable] struct {
	table *Table[K]
	scope K
}

// Chain returns the current chain: the relays behind the clients, and the table's own relay. If no
// client is a relay, it is the beginning of a chain. If there are too many relays, the chain has those
// that came first, and loops are found only through these.
func (a Announced[K]) Chain() Chain {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	return a.table.chain(a.scope)
}

// ID returns the id of the table's own relay, for IDHeader.
func (a Announced[K]) ID() string {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	return url.QueryEscape(a.table.own)
}

// Stale reports whether a stream that has announced these relays must be opened again: there are
// others, or some of them left longer than the linger time ago.
func (a Announced[K]) Stale(announced []string) bool {
	t := a.table
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range t.chain(a.scope).IDs {
		if !slices.Contains(announced, id) {
			return true
		}
	}
	s := t.scopes[a.scope]
	return slices.ContainsFunc(announced, func(id string) bool {
		switch {
		case s == nil:
			return true
		case id == t.own:
			return !t.recent(&s.self)
		}
		r := s.byID[id]
		return r == nil || !t.recent(r)
	})
}

// chain is Announced.Chain. The caller holds mu.
func (t *Table[K]) chain(k K) Chain {
	c := Chain{Relay: true}
	s := t.scopes[k]
	if s == nil || s.self.clients == 0 {
		return c
	}
	for _, r := range s.relays {
		if len(c.IDs) == MaxRelays-1 {
			break
		}
		if r.clients > 0 {
			c.IDs = append(c.IDs, r.id)
		}
	}
	c.IDs = append(c.IDs, t.own)
	return c
}

// Refused reports whether a stream that has announced these relays was refused because of some of its clients: the
// control plane is a relay that names itself, in a text with a LoopError, and these clients have come through it. They
// lose their streams, and for a while the scope has none like them. So the next stream announces the others only.
func (a Announced[K]) Refused(announced []string, text string) bool {
	t := a.table
	t.mu.Lock()
	defer t.mu.Unlock()
	id, loop := refuser(text, announced)
	if loop == nil || id == t.own {
		return false
	}
	s := t.get(a.scope)
	s.admitAgain()
	s.refused[id] = refusal{loop, time.Now().Add(refusedFor)}
	for m := range s.members {
		if slices.Contains(m.known.IDs, id) {
			t.leave(a.scope, m)
			go m.end(loop)
		}
	}
	return true
}

// Watch calls f, with locks held, whenever the result of Stale may have changed, until stop is
// called.
func (a Announced[K]) Watch(f func()) (stop func()) {
	t := a.table
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.get(a.scope)
	s.watchers[&f] = struct{}{}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(s.watchers, &f)
		t.boundIdle(a.scope, s)
		t.tidy(a.scope, s)
	}
}

// get returns a scope, and adds it if it is new. The caller holds mu.
func (t *Table[K]) get(k K) *scope {
	s := t.scopes[k]
	if s == nil {
		s = &scope{
			members: map[*Member]struct{}{}, refused: map[string]refusal{}, byID: map[string]*relayClients{},
			watchers: map[*func()]struct{}{},
		}
		t.scopes[k] = s
	}
	return s
}

// tidy removes a scope without clients and watchers. The caller holds mu.
func (t *Table[K]) tidy(k K, s *scope) {
	if t.scopes[k] == s && s.isIdle() && s.forget == nil {
		delete(t.scopes, k)
	}
}

func (s *scope) notify() {
	for f := range s.watchers {
		(*f)()
	}
}
