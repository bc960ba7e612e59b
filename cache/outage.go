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
