package failover

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Feed feeds the topics of a scope from one server.
type Feed interface {
	cache.Feeder
	// Restate tells the sink once more all that is held, and what cannot be had. It
	// neither blocks nor calls the sink.
	Restate()
	// Leave waits, for a bounded time, until the server knows that nothing is wanted
	// any more.
	Leave()
	// Close ends the feeding and does not wait for that: Done is closed when nothing
	// comes to the sink any more.
	Close()
	Done() <-chan struct{}
}

// Sink takes what has become known: the cache.
type Sink interface {
	Apply(cache.Update)
}

// Holder is asked for what is held of a topic: the cache. See [cache.Cache.Held].
type Holder interface {
	Held(k cache.Key, yield func(key string, r *cache.Resource))
}

// EventKind says what has become of a server.
type EventKind uint8

// The kinds of events.
const (
	// Opened: there is a stream, which says little yet.
	Opened EventKind = iota
	// Responded: its first response has come, and is told to the sink after that.
	Responded
	// Lost: a stream that had brought a response has ended.
	Lost
	// Failed: there is no stream, or it has ended without a response.
	Failed
)

// Event is what has become of a server.
type Event struct {
	Kind   EventKind
	Reason string // why it is Lost or has Failed
}

// event takes one.
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
