package downstream

import (
	"github.com/xds-relay/xds-relay/loglines"
)

// event is something that clients can bring about again and again, and that is logged.
type event uint8

const (
	eventLimit event = iota
	eventNameRefused
	eventPaced
	eventInvalid
	eventRejected
	eventConnection
	eventUnreachable
	eventClientRefused
	eventDenied
	eventExpired
	eventNotAdmitted
	numEvents
)

// clientLines bound what is logged of the clients of one listener, for each event by
// itself: a client that comes back ten thousand times a second would have a line each
// time, however few there are for each of its streams.
type clientLines [numEvents]loglines.Shared
