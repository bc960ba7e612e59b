package cache

import (
	"maps"
	"slices"
	"sync/atomic"
)

// The number of cached resources in each state, with the states of gRPC's xDS clients. The numbers are updated when a
// state changes, so reading them does not visit all resources.

// CacheState is the state of a resource. gRFC A78: "grpc.xds.cache_state"; gRFC A88 adds the states for errors.
type CacheState uint8

// The states of resources.
const (
	// StateRequested: nothing has been received. This includes resources that the relay refuses to request, and
	// control planes that cannot be reached.
	StateRequested CacheState = iota
	// StateDoesNotExist: the authority reported that the resource does not exist.
	StateDoesNotExist
	// StateACKed: the resource has been received and stored.
	StateACKed
	// StateNACKed: the resource has been received, but cannot be stored.
	StateNACKed
	// StateNACKedButCached: a newer resource cannot be stored, and the last good one is served.
	StateNACKedButCached
	// StateTimeout: the control plane has not answered in time.
	StateTimeout
	// StateReceivedError: the authority has sent an error for the resource.
	StateReceivedError
	// StateReceivedErrorButCached: the authority has sent an error, and the last good resource is served.
	StateReceivedErrorButCached
	// CacheStates is the number of states.
	CacheStates
)

// String returns the state as in gRPC's metrics.
func (s CacheState) String() string {
	return [CacheStates]string{
		"requested", "does_not_exist", "acked", "nacked", "nacked_but_cached", "timeout", "received_error", "received_error_but_cached",
	}[s]
}

// StateCounts has a number for each CacheState.
type StateCounts [CacheStates]int64

// stateCounts are the StateCounts of the topics of one type in one scope.
type stateCounts [CacheStates]atomic.Int64

// replace subtracts the counts was, and adds the counts is.
func (c *stateCounts) replace(old, next *StateCounts) {
	for i := range c {
		if d := next[i] - old[i]; d != 0 {
			c[i].Add(d)
		}
	}
}

// withError returns the state of a resource with an error. cached: the last good one is served.
func withError(err *Error, cached bool) CacheState {
	switch {
	case err.Invalid && cached:
		return StateNACKedButCached
	case err.Invalid:
		return StateNACKed
	case err.isSilence():
		return served(cached, StateTimeout, StateACKed)
	case err.Outage != nil || err.Refused: // no control plane has sent the error
		return served(cached, StateRequested, StateACKed)
	}
	return served(cached, StateReceivedError, StateReceivedErrorButCached)
}

func served(cached bool, plain, butCached CacheState) CacheState {
	if cached {
		return butCached
	}
	return plain
}

// cacheState returns the state of an entry's resource.
func (s *State) cacheState() CacheState {
	switch {
	case s.Status == Present && s.Err == nil:
		return StateACKed
	case s.Status == Present || s.Status == Failed:
		return withError(s.Err, s.Status == Present)
	case s.Status == Absent:
		return StateDoesNotExist
	}
	return StateRequested
}

// recount updates the counts after an entry's state has changed. The caller holds mu.
func (e *Entry) recount(old, next *State) {
	if old.Resource != next.Resource && !e.ended {
		e.table.scope.spell(next.Resource, 1) // first: what both have stays known
		e.table.scope.spell(old.Resource, -1)
	}
	if a, b := old.cacheState(), next.cacheState(); a != b && !e.ended {
		e.table.states[a].Add(-1)
		e.table.states[b].Add(1)
	}
}

// recount updates the counts of the set's members. A set without an answer counts as one resource. The caller holds
// mu.
func (s *Set) recount() {
	if s.ended {
		return
	}
	var now StateCounts
	switch s.status {
	case Present:
		now = s.notes.states
		now[StateACKed] += int64(s.present - s.notes.ofMembers)
	case Failed:
		now[withError(s.err, false)]++
	case Requested, Absent:
		now[StateRequested]++
	}
	if now != s.counted {
		s.table.states.replace(&s.counted, &now)
		s.counted = now
	}
}

// endCounting subtracts an entry or a set that has ended from the counts.
func (t *topic) endCounting(e *Entry, s *Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	if e != nil {
		t.table.scope.spell(e.state.Load().Resource, -1)
		t.table.states[e.state.Load().cacheState()].Add(-1)
		return
	}
	if s.spelling > 0 {
		for m := range s.members.All() {
			if m.Present() {
				t.table.scope.spell(m.Resource, -1)
			}
		}
	}
	t.table.states.replace(&s.counted, &StateCounts{})
}

// EachStates calls f with the counts of each type in each scope. Its cost does not depend on the number of resources.
// f must not call the cache.
func (c *Cache) EachStates(f func(scope Scope, typeURL string, counts *StateCounts)) {
	c.mu.RLock()
	scopes := slices.Collect(maps.Values(c.scopes))
	c.mu.RUnlock()
	for _, topics := range scopes {
		topics.mu.RLock()
		for typeURL, t := range topics.tables {
			var counts StateCounts
			for i := range counts {
				counts[i] = t.states[i].Load()
			}
			f(topics.scope, typeURL, &counts)
		}
		topics.mu.RUnlock()
	}
}
