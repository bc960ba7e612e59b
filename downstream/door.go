package downstream

import (
	"sync/atomic"

	"golang.org/x/time/rate"
)

// Door is where the clients of a listener come in. The settings for their streams can change, and the
// counts of what is open stay. A listener whose TLS changes has several servers one after the other;
// all of them have one Door.
type Door struct {
	newest atomic.Pointer[gate]

	conns      atomic.Int64 // connections
	churn      churn
	streams    atomic.Int64
	turnedAway rate.Sometimes // of those that were turned away
	lines      clientLines
}

// NewDoor returns the door of a listener, for ListenerOptions.Door.
func NewDoor(o ListenerOptions) *Door {
	d := &Door{turnedAway: rate.Sometimes{Interval: turnedAwayEvery}}
	d.Set(o)
	return d
}

// Set changes the settings for streams. It holds for those that begin from now on, and
// SecretsForAnyone at the next [Server.Reconfigure] for those that are open.
func (d *Door) Set(o ListenerOptions) {
	o.Door = d
	d.newest.Store(newGate(o))
}

// door returns the door of a listener.
func (o *ListenerOptions) door() *Door {
	if o.Door == nil {
		return NewDoor(*o)
	}
	return o.Door
}
