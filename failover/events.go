package failover

import (
	"time"

	"github.com/xds-relay/xds-relay/internal/delivery"
)

// Event passes what happens to the streams to a server to the method of its kind.
func (m *Machine) Event(now time.Time, i int, e delivery.Event) {
	switch e.Kind {
	case delivery.Opened:
		m.Opened(now, i)
	case delivery.Responded:
		m.Responded(now, i)
	case delivery.Lost:
		m.Lost(now, i, e.Reason)
	case delivery.Failed:
		m.Failed(now, i, e.Reason)
	case delivery.Delivered, delivery.Ended, delivery.TypeOpened, delivery.TypeAnswered, delivery.TypeLost,
		delivery.NamesAnswered:
	}
}
