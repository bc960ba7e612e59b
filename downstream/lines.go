package downstream

import (
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// event is something that clients can cause again and again, and that is logged.
type event uint8

const (
	eventLimit event = iota
	eventNameRefused
	eventPaced
	eventInvalid
	eventIncomplete
	eventRejected
	eventConnection
	eventUnreachable
	eventClientRefused
	eventDenied
	eventExpired
	eventNotAdmitted
	eventNoRelay
	eventLoop
	numEvents
)

// clientLines bound what is logged about the clients of one listener, for each event separately: a client that
// reconnects ten thousand times a second would have a line each time, however few there are for each of its streams.
type clientLines [numEvents]loglines.Shared
