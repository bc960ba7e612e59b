package relay

import (
	"context"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/internal/process"
)

// drain waits until load balancers know that the relay is not ready, then sends the clients of all listeners away,
// and waits for that.
func (r *Relay) drain() {
	d := r.now().cfg.Drain
	r.shutdown.Drain(d.Delay + d.Time)
	const more = 15 * time.Second // for the shutdown after it
	r.notify(process.NotifyTakes(d.Delay + d.Time + more))
	r.log.Info("draining", "delay", d.Delay, "time", d.Time, "clients", r.server.Clients(), "event", "relay")
	r.shutdown.Stage("waiting until load balancers know that the relay drains")
	<-time.After(d.Delay)
	r.shutdown.Stage("sending clients away")
	var draining sync.WaitGroup
	for _, l := range r.openListeners() {
		draining.Go(func() { l.drain(context.Background(), d.Time) })
	}
	draining.Wait()
	r.shutdown.Drain(0)
	r.log.Info("drained", "event", "relay")
}
