package relay

import (
	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/process"
)

// connections returns how many connections a listener may have: its configured limit, but
// at most its share of the process's file descriptors. A tenth of the descriptors is
// reserved, so that clients cannot use up those for control planes.
func (r *Relay) connections(cfg *configs.Config, l *configs.Listener) int {
	listeners := len(cfg.Listeners)
	if cfg.Fleet != nil {
		listeners++ // for members
	}
	share := connectionShare(withoutAdmin(process.MaxDescriptors()), listeners)
	if share == 0 || l.Limits.Connections <= share {
		return l.Limits.Connections
	}
	r.log.Info("connections are limited by the descriptors that the process may have",
		"address", l.Address, "limit", share, "configured", l.Limits.Connections)
	return share
}

// withoutAdmin subtracts the descriptors that connections to the admin listener may use.
func withoutAdmin(descriptors uint64) uint64 {
	const reserved = admin.MaxConns
	if descriptors <= 2*reserved {
		return descriptors
	}
	return descriptors - reserved
}

// connectionShare returns how many connections each listener may have, or 0 for no limit.
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
