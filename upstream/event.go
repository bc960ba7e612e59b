package upstream

import (
	"sync"

	"github.com/xds-relay/xds-relay/internal/delivery"
)

// mergeEvents merges the events of a control plane's streams: the control plane can be
// reached as long as one of them is not lost, and has failed when all have. What happens to types passes.
func mergeEvents(to delivery.Receiver) func(delivery.Event) {
	var mu sync.Mutex
	type stream struct {
		typeURL     string
		namesStream bool
	}
	last := map[stream]delivery.Kind{}
	all := func(fits func(delivery.Kind) bool) bool {
		for _, kind := range last {
			if !fits(kind) {
				return false
			}
		}
		return true
	}
	return func(e delivery.Event) {
		if e.Kind >= delivery.TypeOpened {
			to.Deliver(e)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		of := stream{e.TypeURL, e.NamesStream}
		last[of] = e.Kind
		pass := true
		switch e.Kind {
		case delivery.Lost:
			pass = all(func(k delivery.Kind) bool { return k == delivery.Lost || k == delivery.Failed })
		case delivery.Failed:
			pass = all(func(k delivery.Kind) bool { return k == delivery.Failed })
		case delivery.Ended:
			delete(last, of)
			pass = len(last) == 0
		}
		if pass {
			to.Deliver(delivery.Event{Kind: e.Kind, Reason: e.Reason})
		}
	}
}
