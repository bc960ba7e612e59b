package failover

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// ServerSource is the [cache.Source] of a scope from one server.
type ServerSource interface {
	cache.Source
	// Resend makes the source apply everything that it holds, and its errors, to the
	// sink once more. It neither blocks nor calls the sink.
	Resend()
	// Drain waits, for a bounded time, until the server knows that the relay has
	// unsubscribed from everything.
	Drain()
	// Close stops the source without waiting for it. Done is closed when the feed
	// calls the sink no more.
	Close()
	Done() <-chan struct{}
}

// Sink stores updates: the cache.
type Sink interface {
	Apply(...cache.Update)
}

// Holder returns the resources that are cached for a topic: the cache. See
// [cache.Cache.Contents].
type Holder interface {
	Contents(k cache.Key, yield func(key string, r *cache.Resource))
}

// EventKind is the kind of an [Event].
type EventKind uint8

// The kinds of events.
const (
	// Opened: a stream is open, without a response so far.
	Opened EventKind = iota
	// Responded: the first response of the stream has arrived. The feed reports the
	// event before it applies the response to the sink.
	Responded
	// Lost: a stream that had brought a response has ended.
	Lost
	// Failed: a stream could not be opened, or has ended without a response.
	Failed
)

// Event is a change of the connection to a server.
type Event struct {
	Kind   EventKind
	Reason string // why it is Lost or has Failed
}

// event passes an event to the method of its kind.
func (m *Machine) event(now time.Time, i int, e Event) {
	switch e.Kind {
	case Opened:
		m.Opened(now, i)
	case Responded:
		m.Responded(now, i)
	case Lost:
		m.Lost(now, i, e.Reason)
	case Failed:
		m.Failed(now, i, e.Reason)
	}
}
