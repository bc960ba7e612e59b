package cache

import "sync/atomic"

// Outage is a time during which no control plane of a scope can be reached. The errors that it
// causes refer to it (Error.Outage). So a reader of such an error can see that the outage is over,
// even before the name has an answer.
type Outage struct{ over atomic.Bool }

// End records that a control plane has answered. o may be nil.
func (o *Outage) End() {
	if o != nil {
		o.over.Store(true)
	}
}
