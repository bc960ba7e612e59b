package relay

import (
	"slices"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/sockets"
)

// leavingSockets returns the sockets that no listener has by a configuration, among those that are open now. It
// closes a socket that was lost.
func (r *Relay) leavingSockets(cfg *configs.Config) *sockets.Leaving {
	type place struct {
		address string
		peers   bool
	}
	stays := map[place]int{}
	for i := range cfg.Listeners {
		stays[place{cfg.Listeners[i].Address, false}]++
	}
	if cfg.Fleet != nil {
		stays[place{cfg.Fleet.Listen, true}]++
	}
	var all sockets.Leaving
	for _, l := range r.openListeners() {
		at := place{l.config.Address, l.peers}
		if stays[at]--; stays[at] < 0 && l.isLost() == nil {
			all = append(all, l.socket)
		}
	}
	if o := r.theOperator(); o != nil && o.config.Address != cfg.Admin.Address && r.lostOperator() == nil {
		all = append(all, o.sockets)
	}
	return &all
}

// closeGone closes the sockets of the listeners that are gone, including the admin listener, unless other listeners
// have taken them over. It does so at once, because a later reload may need to open the same addresses.
func (r *Relay) closeGone(gone []*listener, p *planned) {
	before, taken := r.theOperator(), false
	for _, l := range p.listeners {
		taken = taken || before != nil && l.listener.socket == before.sockets
	}
	r.commitOperator(p.operator, taken)
	for _, l := range gone {
		s := l.giveUp()
		has := func(of *listenerPlan) bool { return of.listener.socket == s }
		if s != nil && !slices.ContainsFunc(p.listeners, has) && (p.operator == nil || p.operator.sockets != s) {
			_ = s.Close() // it may be closed already
		}
	}
}
