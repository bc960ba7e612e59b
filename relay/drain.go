package relay

import (
	"context"
	"sync"
	"time"
)

// drain waits until load balancers know that the relay is not ready, and then until all listeners
// have sent their clients away.
func (r *Relay) drain() {
	d := r.cfg.Drain
	r.shutdown.Drain(d.Delay + d.Time)
	r.log.Info("draining", "delay", d.Delay, "time", d.Time, "clients", r.server.Clients())
	r.shutdown.Stage("waiting until load balancers know that the relay drains")
	<-time.After(d.Delay)
	r.shutdown.Stage("sending clients away")
	var draining sync.WaitGroup
	for _, l := range r.listeners {
		draining.Go(func() { l.drain(context.Background()) })
	}
	draining.Wait()
	r.shutdown.Drain(0)
	r.log.Info("drained")
}
