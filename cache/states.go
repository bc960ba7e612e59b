package cache

import (
	"maps"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/codes"
)

// How many resources the cache has in which state, in the words of gRPC's xDS clients. They are counted when a state
// changes, so that nobody has to look at all resources.

// CacheState is the state of a resource. gRFC A78: "grpc.xds.cache_state"; gRFC A88 adds those of errors.
type CacheState uint8

// The states of resources.
const (
	// StateRequested: nothing has been received. The relay, or a control plane that cannot be reached, may be why.
	StateRequested CacheState = iota
	// StateDoesNotExist: the authority says that it does not exist.
	StateDoesNotExist
	// StateACKed: it has been received, and can be stored.
	StateACKed
	// StateNACKed: it has been received, and cannot be stored.
	StateNACKed
	// StateNACKedButCached: the last good one is served, and what came then cannot be stored.
	StateNACKedButCached
	// StateTimeout: the control plane has not answered in time.
	StateTimeout
	// StateReceivedError: the authority has sent an error for it.
	StateReceivedError
	// StateReceivedErrorButCached: the last good one is served, and an error came then.
	StateReceivedErrorButCached
	// CacheStates is how many there are.
	CacheStates
)

// String returns the state as gRPC's metrics have it.
func (s CacheState) String() string {
	return [CacheStates]string{
		"requested", "does_not_exist", "acked", "nacked", "nacked_but_cached", "timeout", "received_error", "received_error_but_cached",
	}[s]
}

// StateCounts has a number for each CacheState.
type StateCounts [CacheStates]int64

// stateCounts are the StateCounts of the topics of one type in one scope.
type stateCounts [CacheStates]atomic.Int64

// replace counts something that was counted as was, and is now.
func (c *stateCounts) replace(was, is *StateCounts) {
	for i := range c {
		if d := is[i] - was[i]; d != 0 {
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
	case err.Unanswered || err.Code == codes.DeadlineExceeded:
		return served(cached, StateTimeout, StateACKed)
	case err.Outage != nil || err.Refused: // no control plane has sent the error
		return served(cached, StateRequested, StateACKed)
	}
	return served(cached, StateReceivedError, StateReceivedErrorButCached)
}

func served(cached bool, not, is CacheState) CacheState {
	if cached {
		return is
	}
	return not
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

// recount counts an entry whose state was and is now. The caller holds mu.
func (e *Entry) recount(was, is *State) {
	if a, b := was.cacheState(), is.cacheState(); a != b && !e.ended {
		e.table.states[a].Add(-1)
		e.table.states[b].Add(1)
	}
}

// recount counts the set's members. Without an answer, the set is itself a resource. The caller holds mu.
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

// endCounting counts an entry or a set no more that has ended.
func (t *topic) endCounting(e *Entry, s *Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	if e != nil {
		t.table.states[e.state.Load().cacheState()].Add(-1)
		return
	}
	t.table.states.replace(&s.counted, &StateCounts{})
}

// EachStates calls f with the numbers of each type in each scope. It costs nothing for each resource, and f must not
// call the cache.
func (c *Cache) EachStates(f func(scope Scope, typeURL string, counts *StateCounts)) {
	c.mu.RLock()
	scopes := slices.Collect(maps.Values(c.scopes))
	c.mu.RUnlock()
	for _, of := range scopes {
		of.mu.RLock()
		for typeURL, t := range of.tables {
			var counts StateCounts
			for i := range counts {
				counts[i] = t.states[i].Load()
			}
			f(of.scope, typeURL, &counts)
		}
		of.mu.RUnlock()
	}
}
