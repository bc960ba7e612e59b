package cache

import "sync/atomic"

// Outage is a time during which no control plane of a scope can be reached. The errors
// that it causes refer to it (Error.Outage), so that those who hold one of these errors
// know when the outage is over, even before there is an answer for their name.
type Outage struct{ over atomic.Bool }

// End notes that a control plane has answered. It may be called on nil.
func (o *Outage) End() {
	if o != nil {
		o.over.Store(true)
	}
}

// Unreachable says that the error was caused by an outage that is not over. It may be
// called on nil.
func (e *Error) Unreachable() bool {
	return e != nil && e.Outage != nil && !e.Outage.over.Load()
}

// Unreachable says that nothing is known of the topic, because no control plane of its
// scope can be reached.
func (s *State) Unreachable() bool { return s.Status == Failed && s.Err.Unreachable() }
