// Package deliverytest has receivers for tests of sources.
package deliverytest

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
)

// Func is a function as a Receiver.
type Func func(delivery.Event)

// Deliver implements delivery.Receiver.
func (f Func) Deliver(e delivery.Event) { f(e) }

// Direct returns a Receiver that applies deliveries to a cache as they are.
func Direct(c interface{ Apply(updates ...cache.Update) }) delivery.Receiver {
	return Func(func(e delivery.Event) {
		if e.Kind == delivery.Delivered {
			c.Apply(e.Types...)
		}
	})
}
