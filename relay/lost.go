package relay

import (
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/admin"
)

// Listeners whose socket fails. The others go on, and so do the connections that the listener has. It is opened
// again, by a reload or as soon as that is possible.

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
		r.reopen(run, l)
	})
}

// reopen opens a lost listener again, unless a reload does.
func (r *Relay) reopen(run *serving, l *listener) {
	for pause := reopenSoon; ; pause = min(2*pause, reopenEvery) {
		select {
		case <-time.After(pause):
		case <-run.ctx.Done():
			return
		}
		if r.tryReopen(run, l) {
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
	if err := r.planListener(run.ctx, r.now().cfg, p); err != nil || p.server == nil {
		p.identities.Close()
		return false
	}
	r.commitListener(p)
	r.serve(run, l, p.server)
	return true
}

// lostListeners are the metrics of listeners that accept no connections.
func (r *Relay) lostListeners() []admin.Sample {
	n := int64(0)
	for _, l := range r.openListeners() {
		if l.isLost() != nil {
			n++
		}
	}
	return []admin.Sample{{Value: n}}
}
