package cache

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
)

// Status is what the cache knows about a topic.
type Status uint8

// The statuses of a topic.
const (
	// Requested: no answer yet.
	Requested Status = iota
	// Present: an entry has its resource; a set has its members.
	Present
	// Absent: the authority reported that the resource does not exist.
	Absent
	// Failed: the topic could not be fetched, and may exist or not.
	Failed
)

// String returns the status in lower case, as in logs.
func (s Status) String() string {
	switch s {
	case Requested:
		return "requested"
	case Present:
		return "present"
	case Absent:
		return "absent"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// Error says why a resource could not be fetched, in the form in which clients receive it.
// xDS: "resource_errors" of discovery.proto (TP3).
type Error struct {
	Code    codes.Code
	Message string
	// Outage is set if no control plane can be reached. Clients do not receive it.
	Outage *Outage
	// Unanswered: a SotW server answers other requests on the stream, but did not answer this
	// one in time. A client that never had the resource may treat it as absent; a client that
	// may hold it must not. xDS: "Knowing When a Requested Resource Does Not Exist".
	Unanswered bool
	// Refused: the relay itself refuses to request the resource. The resource may exist, so a
	// client that has it keeps it.
	Refused bool
	// Invalid: the origin sent a resource that the relay cannot store. The resource exists, but
	// its content is unknown.
	Invalid bool
}

// Transient reports whether the error concerns the connection to the authority, and not the
// resource: the authority was not reached, was sent no request, or has not answered.
func (e *Error) Transient() bool {
	return e.Unanswered || e.Refused || e.Code == codes.Unavailable || e.Code == codes.DeadlineExceeded
}

// Inconclusive reports whether the resource may exist in spite of the error. A client that may
// hold the resource must not lose it because of such an error.
func (e *Error) Inconclusive() bool { return e.Invalid || e.Transient() }

// Error returns code and message.
func (e *Error) Error() string { return e.Code.String() + ": " + e.Message }

// State is what is known of one entry at one moment.
type State struct {
	Status Status
	// Partial and Stale are those of the Change that brought Resource.
	Partial, Stale bool
	// Answer is the Answer of the newest Change.
	Answer Answer
	// Heartbeats counts the heartbeats of a Resource that has a TTL. xDS: "TTL".
	Heartbeats uint32
	// Resource is the last good one. It is set when Present.
	Resource *Resource
	// Previous is the resource before the entry became Absent or a redirect, nil if there
	// was none.
	Previous *Resource
	// Err is set when Failed. When Present, it says why a newer state could not be fetched.
	// When Absent, it is the authority's reason.
	Err *Error
	// Origin is the origin's version of this state, nil if there is none.
	Origin *OriginVersion
	// Since is the time of the last change of Status or Resource, in nanoseconds since the epoch; 0
	// while nothing is known.
	Since int64
}

// Unreachable reports whether an outage caused the error and is not over. e may be nil.
func (e *Error) Unreachable() bool {
	return e != nil && e.Outage != nil && !e.Outage.over.Load()
}

// Unreachable reports whether the topic has no answer because no control plane of its scope can be
// reached.
func (s *State) Unreachable() bool { return s.Status == Failed && s.Err.Unreachable() }

// isUnanswered reports whether no control plane has answered for the entry. An error that a control plane sent is an
// answer.
func (s *State) isUnanswered() bool {
	return s.Status == Requested || s.Status == Failed && (s.Err.isSilence() || s.Err.Refused || s.Err.Outage != nil)
}

// isSilence reports whether a control plane that can be reached has not answered in time.
func (e *Error) isSilence() bool { return e.Unanswered || e.Code == codes.DeadlineExceeded }

// Entry is one resource under one name, as the authority last sent it.
type Entry struct {
	topic
	state atomic.Pointer[State] // replaced as a whole, under topic.mu
}

var requested = &State{Status: Requested}

func newEntry(t *table, k Key) *Entry {
	e := &Entry{topic: topic{table: t, key: k}}
	e.entry = e
	e.state.Store(requested)
	t.states[StateRequested].Add(1)
	return e
}

// Key returns the entry's key.
func (e *Entry) Key() Key { return e.key }

// Name returns the name in the entry's Key.
func (e *Entry) Name() string { return e.key.Name }

// isEmpty reports whether the entry has no resource.
func (e *Entry) isEmpty() bool { return e.state.Load().Resource == nil }

// Redirected reports whether the authority redirects the name. It is false for derived topics,
// because their redirects have been followed. TP1: "Server redirects".
func (e *Entry) Redirected() bool {
	r := e.state.Load().Resource
	return r != nil && r.Redirect() != "" && e.key.Scope.Derived == ""
}

// AliasOf returns the own name of the entry's resource if the entry's name is an alias
// of it, otherwise "". The string shares the resource's bytes.
func (e *Entry) AliasOf() string {
	if r := e.state.Load().Resource; r != nil && r.Alias() {
		return r.Name()
	}
	return ""
}

// State returns a copy of the current state, without taking a lock.
func (e *Entry) State() State { return *e.state.Load() }

// Snapshot is like State, but does not copy. The result never changes.
func (e *Entry) Snapshot() *State { return e.state.Load() }

// set replaces the state, and notifies the watchers if clients would notice.
func (e *Entry) set(next State, wakers []Waker) []Waker {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.state.Load()
	renewed := e.outdated && next.Status != Failed
	e.outdated = e.outdated && !renewed
	arrived := next.Status == Present // a resource has arrived, and not only an error
	if next.Status == Failed && (old.Status == Present || old.Status == Absent) {
		// The last known state is served as long as there is no newer one.
		next.Status, next.Resource, next.Previous, next.Partial = old.Status, old.Resource, old.Previous, old.Partial
		next.Stale = old.Stale
	}
	if next.Status == Absent && next.Previous == nil {
		next.Previous = cmp.Or(old.Resource, old.Previous)
	}
	if r := next.Resource; r != nil && r.Redirect() != "" {
		next.Previous = cmp.Or(old.Resource, old.Previous)
		if next.Previous != nil && next.Previous.Redirect() != "" {
			next.Previous = old.Previous
		}
	}
	if next.Err != nil && next.Origin == nil && next.Resource != nil && old.Resource == next.Resource {
		next.Origin = old.Origin
	}
	next.Heartbeats = old.Heartbeats
	if arrived && old.Status == Present && old.Resource.RenewsTTL(next.Resource) && old.Resource.OwnName() == next.Resource.OwnName() {
		next.Heartbeats++
		next.Resource = old.Resource.WithRenewedTTL(next.Resource)
	}
	if old.Origin != nil && old.Origin != next.Origin {
		old.Origin.left.Add(1)
	}
	if next.Since = old.Since; old.Status != next.Status || !sameContent(old.Resource, next.Resource) {
		next.Since = time.Now().UnixNano()
	} else if arrived {
		e.restated = e.table.scope.storedAt
	}
	e.state.Store(&next)
	e.recount(old, &next)
	if again := e.renewed(old, &next); !renewed && !again && sameForClients(old, &next) {
		if old.Heartbeats == next.Heartbeats {
			return wakers
		}
		return e.notify(wakers, true)
	}
	return e.notify(wakers, false)
}

func sameContent(a, b *Resource) bool { return a == b || a != nil && b != nil && a.Hash() == b.Hash() }

// sameForClients reports whether two states differ in nothing that clients receive, except heartbeats.
func sameForClients(a, b *State) bool {
	if a.Status != b.Status || a.Partial && !b.Partial || a.Stale && !b.Stale {
		return false
	}
	if r := b.Resource; r != nil && (a.Resource.Hash() != r.Hash() || (a.Resource.TTL() > 0) != (r.TTL() > 0)) {
		return false
	}
	// The name is now an alias of another resource, which a client may have or not.
	if r := b.Resource; r != nil && a.Resource.OwnName() != r.OwnName() {
		return false
	}
	// A resource that must not be cached was sent again, for new watchers.
	if r := b.Resource; r != nil && r.DoNotCache() && a.Resource != r {
		return false
	}
	if a.Err == nil || b.Err == nil {
		return a.Err == b.Err
	}
	return *a.Err == *b.Err
}
