// Package delivery is what sources say of the resources of a scope, and of the servers that give them. A source calls
// one method, [Receiver.Deliver].
package delivery

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Cause is why a source says something.
type Cause uint8

// The causes of a delivery.
const (
	Response Cause = iota // the server has sent it, or a file has changed
	Known                 // the source had it when a topic began
	Restated              // everything that the source holds, once more: see Source.Resend
	Silence               // it follows from the server's silence
	Expired               // a TTL has ended
	Outage                // the server cannot be reached
	Refused               // the source cannot request it
)

// String returns a word for the cause.
func (c Cause) String() string {
	return [...]string{"response", "known", "restated", "silence", "expired", "outage", "refused"}[c]
}

// Delivery is what a source says at once about one scope.
type Delivery struct {
	Cause Cause
	// Types has an update for each type, in the order in which clients need them: see cache.InOrder. The receiver may
	// change the slice, but not what the updates have.
	Types []cache.Update
	// ExpiresAt has the times, by name, at which the resources with a TTL expire, if the receiver may pass them on late.
	ExpiresAt map[string]time.Time
}

// Kind is the kind of an event.
type Kind uint8

// The kinds of events: a delivery, or what happens to the streams to the server.
const (
	Delivered Kind = iota
	// Opened: a stream to the server is open, which does not mean much yet. A server that is polled has answered.
	Opened
	// Responded: the first response of a stream has come. Its delivery comes after the event.
	Responded
	// Lost: a stream on which a response came has ended, and is being opened again. To gRFC A57 that is no error.
	Lost
	// Failed: a stream could not be opened, or has ended without a response. The delivery of the error comes after the
	// event.
	Failed
	// Ended: a stream has ended because it is no longer needed, or because a new one is needed.
	Ended
	// TypeOpened: a type is requested on a new stream. TypeAnswered: its first response has come there. TypeLost: that
	// stream has ended.
	TypeOpened
	TypeAnswered
	TypeLost
	// NamesAnswered: a response for names of a type has come, in SotW. Its delivery comes after the event.
	NamesAnswered
)

// Event is what a source reports.
type Event struct {
	Kind Kind
	Delivery
	// TypeURL is that of a stream for one type, or of what happens to a type. NamesStream is set for a second stream for
	// names. Events of all streams as a whole have neither.
	TypeURL     string
	NamesStream bool
	// Stream identifies the stream of what happens to a type. A server may have several streams with a type, one of which
	// takes the place of another.
	Stream any
	// Reason is why the stream was lost or has failed.
	Reason string
}

// Receiver takes the events of one source, in order. Deliver returns when a delivery was processed.
type Receiver interface{ Deliver(Event) }
