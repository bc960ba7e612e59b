package relay

import (
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/admin"
)

// Listeners whose socket fails, the admin listener too. The others go on, and so do the connections that the listener
// has. It is opened again, by a reload or as soon as that is possible.

const (
	// reopenSoon is after what time a lost listener is opened again at first, and reopenEvery the longest such time.
	reopenSoon  = time.Second
	reopenEvery = 30 * time.Second
)

// serve has a server of a listener serve.
func (r *Relay) serve(run *serving, l *listener, s *clientServer) {
	r.log.Info("serving clients", "address", l.address, "protocol", string(s.protocol))
	run.wg.Go(func() {
		err := s.serve()
		if err == nil || !l.lose(s, err) {
			return
		}
		r.log.Error("a listener accepts no connections any more; the relay tries to open it again", "address", l.address, "reason", err)
		r.reopen(run, func() bool { return r.tryReopen(run, l) })
	})
}

// serveOperator has the admin listener serve.
func (r *Relay) serveOperator(run *serving, o *operator) {
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

// reopen opens a lost listener again by try, until that returns true.
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

// tryReopen tries to open a lost listener. It returns true if nobody has to try again.
func (r *Relay) tryReopen(run *serving, l *listener) bool {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	if r.ended || l.isLost() == nil || !slices.Contains(r.openListeners(), l) {
		return true
	}
	p := &listenerPlan{config: l.config, listener: l}
	if err := r.planListener(run.ctx, r.now().cfg, p, new(leaving)); err != nil || p.server == nil {
		p.identities.Close()
		return false
	}
	r.commitListener(p)
	r.serve(run, l, p.server)
	return true
}

// loseOperator notes that the socket of the admin listener accepts no connections any more, and closes it. It returns
// false if there is another one by now, or none.
func (r *Relay) loseOperator(o *operator, why error) bool {
	r.listening.Lock()
	is := r.operator == o && o.lost == nil
	if is {
		o.lost = why
	}
	r.listening.Unlock()
	if is {
		_ = o.turn.Close() // makes no errors
		_ = o.sockets.Close()
	}
	return is
}

// lostOperator returns why the admin listener accepts no connections, nil if it does, or if there is none.
func (r *Relay) lostOperator() error {
	r.listening.Lock()
	defer r.listening.Unlock()
	if r.operator == nil {
		return nil
	}
	return r.operator.lost
}

// tryReopenOperator tries to open a lost admin listener. It returns true if nobody has to try again.
func (r *Relay) tryReopenOperator(run *serving) bool {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	if r.ended || r.lostOperator() == nil {
		return true
	}
	n, problem := r.planOperator(run.ctx, r.now().cfg, new(leaving))
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

// lost yields the listeners, and why each accepts no connections, nil if it does. That of the operator comes last.
func (r *Relay) lost(yield func(address string, why error)) {
	for _, l := range r.openListeners() {
		yield(l.address, l.isLost())
	}
	if o := r.theOperator(); o != nil {
		yield(o.address, r.lostOperator())
	}
}

// lostListeners are the metrics of listeners that accept no connections.
func (r *Relay) lostListeners() []admin.Sample {
	n := int64(0)
	r.lost(func(_ string, why error) {
		if why != nil {
			n++
		}
	})
	return []admin.Sample{{Value: n}}
}
