package relay

// What the relay lets its operator read.

import (
	"context"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/upstream/directory"
)

// readers returns what the operator reads.
func (r *Relay) readers() operator.Readers {
	of := observed{r}
	return operator.Readers{
		Log: r.log, Admin: r.admin, Cache: r.cache, Server: r.server, Rollouts: r.rollouts, Changes: r.changes, History: r.history, Credentials: r.credentials, Health: r.health,
		Nodes: r.scopes.nodes, Reachability: r.origins.reachability, Sources: of, Process: of,
	}
}

// settingsOf returns what an operator reads of a generation.
func settingsOf(g *generation) *operator.Settings {
	s := &operator.Settings{Config: g.cfg, Router: g.router, Rights: g.rights, Node: g.node, Rollouts: g.rollouts, Tallies: map[string]*taster.Tally{}, Directories: map[string]*directory.Source{}}
	if g.store != nil {
		s.Store = g.store.Store
	}
	for name, c := range g.counts {
		s.Tallies[name] = c.tally
	}
	for name, o := range g.origins {
		if o.directory != nil {
			s.Directories[name] = o.directory.Source
		}
	}
	return s
}

// observed implements Sources and Process.
type observed struct{ relay *Relay }

// Statuses implements Sources.
func (o observed) Statuses() map[cache.Scope][]operator.ServerStatus {
	return o.relay.origins.statuses()
}

// Stale implements Sources.
func (o observed) Stale() map[cache.Scope]int { return o.relay.origins.stale() }

// Held implements Sources.
func (o observed) Held() map[string][]guard.Held { return o.relay.held() }

// Fleet implements Sources.
func (o observed) Fleet() *operator.FleetStatus { return o.relay.fleetStatus() }

// Members implements Sources.
func (o observed) Members() *fleet.Fleet {
	if m := o.relay.fleet.Load(); m != nil {
		return m.Fleet
	}
	return nil
}

// Settings implements Process.
func (o observed) Settings() *operator.Settings { return o.relay.now().settings }

// Config implements Process.
func (o observed) Config() operator.ConfigStatus { return o.relay.configStatus() }

// Began implements Process.
func (o observed) Began() time.Time { return o.relay.readiness.began }

// Missing implements Process.
func (o observed) Missing(authority string) string {
	why, _ := o.relay.readiness.missing(authority)
	return why
}

// Lost implements Process.
func (o observed) Lost(yield func(address string, why error)) { o.relay.lost(yield) }

// Listeners implements Process.
func (o observed) Listeners() (all []operator.ListenerStatus) {
	for _, l := range o.relay.openListeners() {
		l.mu.Lock()
		all = append(all, operator.ListenerStatus{Address: l.address, Door: l.door, CSDS: l.config.CSDS})
		l.mu.Unlock()
	}
	return all
}

// Load implements Process.
func (o observed) Load(ctx context.Context, by string) error { return o.relay.Load(ctx, by) }

// Check implements Process.
func (o observed) Check(ctx context.Context, name string, document []byte) (*operator.Changes, error) {
	return o.relay.Check(ctx, name, document)
}
