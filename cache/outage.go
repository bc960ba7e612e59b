package cache

import "sync/atomic"

// Outage is a time during which no control plane of a scope can be reached. The errors that it
// causes refer to it (Error.Outage). So a reader of such an error knows when the outage is over,
// even before its name has an answer.
type Outage struct{ over atomic.Bool }

// End notes that a control plane has answered. It may be called on nil.
func (o *Outage) End() {
	if o != nil {
		o.over.Store(true)
	}
}

// Unreachable reports whether an outage caused the error and is not over. It may be called on
// nil.
func (e *Error) Unreachable() bool {
	return e != nil && e.Outage != nil && !e.Outage.over.Load()
}

// Unreachable reports whether the topic has no answer because no control plane of its scope can be
// reached.
func (s *State) Unreachable() bool { return s.Status == Failed && s.Err.Unreachable() }
