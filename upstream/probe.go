package upstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// A half-open connection takes requests and brings nothing: the host is dead, or
// something on the way swallows what is sent. gRPC's keepalive finds that after
// minutes, as servers do not take pings more often. A probe finds it sooner: after a
// request and then silence, the relay makes one small call on the connection, which
// every gRPC server answers, be it with UNIMPLEMENTED. Any byte that comes says that the
// connection is alive: a control plane that has nothing to say on its streams keeps them.
//
// Each request arms the connection's timer, if it is not armed; each silence after that
// has one probe.

// sent notes that a request was sent over the connection.
func (w *scannedConn) sent() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.suspected || w.closed {
		return
	}
	w.suspected, w.since = true, time.Since(w.opened)
	w.arm(w.link.of.probe.after)
}

// arm has check called. The caller holds mu.
func (w *scannedConn) arm(in time.Duration) {
	if w.timer == nil {
		w.timer = time.AfterFunc(in, w.check)
	} else {
		w.timer.Reset(in)
	}
}

// check probes the connection, once it has been silent for long enough.
func (w *scannedConn) check() {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	silence := time.Since(w.opened) - max(w.since, time.Duration(w.heard.Load()))
	if wait := w.link.of.probe.after - silence; wait > 0 {
		w.arm(wait)
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	err := w.probe()
	w.mu.Lock()
	w.suspected = false
	if err != nil && !w.closed {
		w.failure = err
	}
	w.mu.Unlock()
	if err != nil {
		_ = w.Conn.Close() // gRPC then reads the failure, and ends the streams
	}
}

// probe returns why the connection is to be given up, if it is.
func (w *scannedConn) probe() error {
	if w.draining.Load() || !w.link.canProbe() {
		return nil
	}
	o := w.link.of.probe
	before := w.heard.Load()
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	_, _ = healthv1.NewHealthClient(w.link.cc).Check(ctx, &healthv1.HealthCheckRequest{}) // whatever it says
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) || w.heard.Load() != before || w.draining.Load() {
		return nil
	}
	return fmt.Errorf("half-open connection: nothing came for %s after a request, and nothing for %s after a probe", o.after, o.timeout)
}
