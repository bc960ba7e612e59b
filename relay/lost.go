package relay

import (
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/internal/sockets"
)

// Listeners whose socket fails, including the admin listener. Other listeners, and the connections of the failed one,
// are not affected. A reload opens the listener again; without one, the relay retries until it can.

const (
	// reopenSoon is the first delay before the relay opens a lost listener again, and reopenEvery the longest.
	reopenSoon  = time.Second
	reopenEvery = 30 * time.Second
)

// serve runs a server of a listener in a goroutine.
func (r *Relay) serve(run *serving, l *listener, s *clientServer) {
	if l.peers {
		r.log.Info("serving other members of the fleet", "address", l.address)
	} else {
		r.log.Info("serving clients", "address", l.address, "protocol", string(s.protocol))
	}
	run.wg.Go(func() {
		err := s.serve()
		if err == nil || !l.lose(s, err) {
			return
		}
		r.log.Error("a listener accepts no connections any more; the relay tries to open it again", "address", l.address, "reason", err, "event", "relay")
		r.reopen(run, func() bool { return r.tryReopen(run, l) })
	})
}

// serveOperator runs the admin listener in a goroutine.
func (r *Relay) serveOperator(run *serving, o *adminListener) {
	r.log.Info("serving the operator", "address", o.address)
	run.wg.Go(func() {
		err := o.serve()
		if err == nil || !r.loseOperator(o, err) {
			return
		}
		r.log.Error("the admin listener accepts no connections any more; the relay tries to open it again", "address", o.address, "reason", err)
		r.reopen(run, func() bool { return r.tryReopenOperator(run) })
	})
}

// reopen calls try, with growing delays, until it returns true.
func (r *Relay) reopen(run *serving, try func() bool) {
	for pause := reopenSoon; ; pause = min(2*pause, reopenEvery) {
		select {
		case <-time.After(pause):
		case <-run.ctx.Done():
			return
		}
		if try() {
			return
		}
	}
}

// tryReopen tries to open a lost listener. It returns true if no further attempt is needed.
func (r *Relay) tryReopen(run *serving, l *listener) bool {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	if r.ended || l.isLost() == nil || !slices.Contains(r.openListeners(), l) {
		return true
	}
	p := &listenerPlan{config: l.config, listener: l, peers: l.peers}
	if err := r.planListener(run.ctx, r.now().cfg, p, new(sockets.Leaving)); err != nil || p.server == nil {
		p.identities.Close()
		return false
	}
	r.commitListener(p)
	r.serve(run, l, p.server)
	return true
}

// loseOperator notes that the socket of the admin listener accepts no more connections, and closes it. It returns
// false if there is another admin listener by now, or none.
func (r *Relay) loseOperator(o *adminListener, why error) bool {
	r.listening.Lock()
	is := r.operator == o && o.lost == nil
	if is {
		o.lost = why
	}
	r.listening.Unlock()
	if is {
		_ = o.turn.Close() // it always returns nil
		_ = o.sockets.Close()
	}
	return is
}

// lostOperator returns why the admin listener accepts no connections, nil if it accepts them or there is none.
func (r *Relay) lostOperator() error {
	r.listening.Lock()
	defer r.listening.Unlock()
	if r.operator == nil {
		return nil
	}
	return r.operator.lost
}

// tryReopenOperator tries to open a lost admin listener. It returns true if no further attempt is needed.
func (r *Relay) tryReopenOperator(run *serving) bool {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	if r.ended || r.lostOperator() == nil {
		return true
	}
	n, problem := r.planOperator(run.ctx, r.now().cfg, new(sockets.Leaving))
	if problem != nil {
		return false
	}
	if n.lost != nil {
		r.undoOperator(n)
		return false
	}
	r.commitOperator(n, false)
	return true
}

// lost iterates over the listeners, each with the reason why it accepts no connections, nil if it accepts them. The
// admin listener comes last.
func (r *Relay) lost(yield func(address string, why error)) {
	for _, l := range r.openListeners() {
		yield(l.address, l.isLost())
	}
	if o := r.theOperator(); o != nil {
		yield(o.address, r.lostOperator())
	}
}

// lostListeners returns the samples of the metric of listeners that accept no connections.
func (r *Relay) lostListeners() []admin.Sample {
	n := int64(0)
	r.lost(func(_ string, why error) {
		if why != nil {
			n++
		}
	})
	return []admin.Sample{{Value: n}}
}
