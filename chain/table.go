package chain

import (
	"slices"
	"sync"
	"time"
)

// Table has, for each scope, the chains of the clients that use it. All of them
// share the scope's stream, which therefore announces all of their relays.
//
// Its methods may be called with any other lock held: it calls nobody but those
// who watch, who must not block.
type Table[K comparable] struct {
	own    string
	linger time.Duration

	mu     sync.Mutex
	scopes map[K]*scope
}

// maxCounted bounds the relays that are known of a scope: their ids are what clients say,
// with no proof. Circles are found only through those that are known.
const maxCounted = 1024

type scope struct {
	// relays are those behind the clients, in the order in which they came, and byID the
	// same by their ids. self is the relay that the table is of, of which each client
	// that is a relay counts.
	relays   []*counted
	byID     map[string]*counted
	self     counted
	watchers map[*func()]struct{}
	forget   *time.Timer // of relays that have gone, nil if none have
}

// counted is a relay, and how many clients it is behind. When these are none it is
// kept for a while.
type counted struct {
	id      string
	clients int
	gone    time.Time
}

// NewTable returns a table of the relay of that id. A relay that has gone is
// forgotten after the linger time, for most come back.
func NewTable[K comparable](own string, linger time.Duration) *Table[K] {
	return &Table[K]{own: own, linger: linger, scopes: map[K]*scope{}}
}

// Join notes that a client with that chain uses the scope, until it leaves with what Join
// returns: the part of the chain that is known.
func (t *Table[K]) Join(k K, c Chain) Chain {
	if !c.Relay {
		return c
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.get(k)
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
	if grown {
		s.tell()
	}
	return known
}

// count adds a relay. If there are too many, one that has gone makes room; nil if none has.
func (s *scope) count(id string) *counted {
	if len(s.relays) == maxCounted {
		gone := slices.IndexFunc(s.relays, func(r *counted) bool { return r.clients == 0 })
		if gone < 0 {
			return nil
		}
		delete(s.byID, s.relays[gone].id)
		s.relays = slices.Delete(s.relays, gone, gone+1)
	}
	r := &counted{id: id}
	s.relays = append(s.relays, r)
	s.byID[id] = r
	return r
}

// Leave undoes a Join that has returned the chain.
func (t *Table[K]) Leave(k K, c Chain) {
	if !c.Relay {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.get(k)
	shrunk := s.self.leave()
	for _, id := range c.IDs {
		if s.byID[id].leave() {
			shrunk = true
		}
	}
	if shrunk && s.forget == nil {
		s.forget = time.AfterFunc(t.linger, func() { t.afterLinger(k, s) })
	}
}

// leave says whether that was the last client.
func (r *counted) leave() bool {
	if r.clients--; r.clients > 0 {
		return false
	}
	r.gone = time.Now()
	return true
}

// kept says that a relay is there, or has not been gone for long.
func (t *Table[K]) kept(r *counted) bool {
	return r.clients > 0 || time.Since(r.gone) < t.linger
}

// afterLinger forgets the relays that have been gone for long.
func (t *Table[K]) afterLinger(k K, s *scope) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.forget = nil
	s.relays = slices.DeleteFunc(s.relays, func(r *counted) bool {
		if t.kept(r) {
			return false
		}
		delete(s.byID, r.id)
		return true
	})
	s.tell()
	next := time.Duration(-1)
	for _, r := range append(s.relays[:len(s.relays):len(s.relays)], &s.self) {
		if wait := t.linger - time.Since(r.gone); r.clients == 0 && wait > 0 && (next < 0 || wait < next) {
			next = wait
		}
	}
	if next >= 0 {
		s.forget = time.AfterFunc(next, func() { t.afterLinger(k, s) })
	}
	t.tidy(k, s)
}

// Of returns what is to be announced of a scope.
func (t *Table[K]) Of(k K) Announced[K] { return Announced[K]{t, k} }

// Announced is what a scope's streams announce.
type Announced[K comparable] struct {
	table *Table[K]
	scope K
}

// Chain returns it as it is now: the relays behind the clients, and the table's
// own, or if no client is a relay the beginning of a chain. If they are too many,
// circles are found only through those that came first.
func (a Announced[K]) Chain() Chain {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	return a.table.chain(a.scope)
}

// Stale says that a stream which has announced these relays is to be opened anew:
// there are others, or some of them have been gone for long.
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
			return !t.kept(&s.self)
		}
		r := s.byID[id]
		return r == nil || !t.kept(r)
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

// Watch has f called, with locks held, when Stale may say something else. It ends
// with stop.
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
		t.tidy(a.scope, s)
	}
}

// get returns a scope, new if nobody uses it. The caller holds mu.
func (t *Table[K]) get(k K) *scope {
	s := t.scopes[k]
	if s == nil {
		s = &scope{byID: map[string]*counted{}, watchers: map[*func()]struct{}{}}
		t.scopes[k] = s
	}
	return s
}

// tidy forgets a scope that nobody uses. The caller holds mu.
func (t *Table[K]) tidy(k K, s *scope) {
	if t.scopes[k] == s && s.self.clients == 0 && len(s.watchers) == 0 && s.forget == nil {
		delete(t.scopes, k)
	}
}

func (s *scope) tell() {
	for f := range s.watchers {
		(*f)()
	}
}
