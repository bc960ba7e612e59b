package cache

import (
	"sync"
	"time"
)

// A client may refuse what has come again while its refusal was on its way: see Entry.Refuse. All clients of a resource
// that is bad may do so within moments. So what they have missed is renewed for all of them at once.

// missedPause is how long refusals are collected.
const missedPause = 100 * time.Millisecond

// missed are the topics of a scope that have something that clients have missed.
type missed struct {
	mu      sync.Mutex
	entries map[*Entry]struct{}
	sets    map[*Set]map[string]struct{} // the keys of members
}

// add adds an entry, or a member of a set, and has renew called soon.
func (m *missed) add(e *Entry, s *Set, key string, renew func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sets == nil {
		m.entries, m.sets = map[*Entry]struct{}{}, map[*Set]map[string]struct{}{}
		time.AfterFunc(missedPause, renew)
	}
	switch {
	case e != nil:
		m.entries[e] = struct{}{}
	case m.sets[s] == nil:
		m.sets[s] = map[string]struct{}{key: {}}
	default:
		m.sets[s][key] = struct{}{}
	}
}

// take returns what was added, and forgets it.
func (m *missed) take() (entries map[*Entry]struct{}, sets map[*Set]map[string]struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entries, sets = m.entries, m.sets
	m.entries, m.sets = nil, nil
	return entries, sets
}

// renewMissed notifies the watchers of what clients have missed.
func (ts *scopeTopics) renewMissed() {
	entries, sets := ts.missed.take()
	var wakers []Waker
	ts.gate.storing.Lock()
	ts.gate.close()
	for e := range entries {
		e.mu.Lock()
		wakers = e.notify(wakers, false)
		e.mu.Unlock()
	}
	for s, keys := range sets {
		wakers = s.renewMissed(keys, wakers)
	}
	ts.gate.open()
	ts.gate.storing.Unlock()
	for _, w := range wakers {
		w.Wake()
	}
}

// renewMissed has members that clients have refused count as Renewed, and notifies the watchers.
func (s *Set) renewMissed(keys map[string]struct{}, wakers []Waker) []Waker {
	s.mu.Lock()
	defer s.mu.Unlock()
	some := false
	for key := range keys {
		m, n := s.members.Get(key), s.notes.byKey[key]
		if m.Present() && (n == nil || n.err == nil) {
			s.renewMember(key, m, m.Resource)
			some = true
		}
	}
	if some {
		wakers = s.notify(wakers, false)
	}
	return wakers
}
