package relay

import (
	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/configs"
)

// connections returns how many connections a listener may have: what its configuration
// says, but no more than its share of the descriptors that the process may have. A tenth of
// those is for everything else, so that clients cannot keep the relay from its control
// planes.
func (r *Relay) connections(l *configs.Listener) int {
	share := connectionShare(besidesAdmin(maxDescriptors()), len(r.cfg.Listeners))
	if share == 0 || l.Limits.Connections <= share {
		return l.Limits.Connections
	}
	r.log.Info("connections are limited by the descriptors that the process may have",
		"address", l.Address, "limit", share, "configured", l.Limits.Connections)
	return share
}

// besidesAdmin leaves out the descriptors that the operator's listener may take.
func besidesAdmin(descriptors uint64) uint64 {
	const leave = admin.MaxConns
	if descriptors <= 2*leave {
		return descriptors
	}
	return descriptors - leave
}

// connectionShare is what each of the listeners may have; 0 if there is no limit.
func connectionShare(descriptors uint64, listeners int) int {
	const (
		most  = 1 << 30
		least = 1
	)
	if descriptors == 0 || descriptors > most {
		return 0
	}
	return max(int(descriptors-descriptors/10)/listeners, least)
}
